"""`python -m docs.pages`: write the pages that the code tells."""

from . import DOCS, written

for path, text in written().items():
    place = DOCS / path
    place.parent.mkdir(exist_ok=True)
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        place.write_text(text, encoding="utf-8")
        print(f"docs/{path} is written")
