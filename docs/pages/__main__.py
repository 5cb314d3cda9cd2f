"""`python -m docs.pages`: write the pages that the code tells, and the notebooks of examples/."""

from . import DOCS, written
from .notebooks import notebooks

for place, text in ({DOCS / path: text for path, text in written().items()} | notebooks()).items():
    place.parent.mkdir(exist_ok=True)
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        place.write_text(text, encoding="utf-8")
        print(f"{place.relative_to(DOCS.parent)} is written")
