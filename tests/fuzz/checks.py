"""What has to hold for every net: each check by name, a function of a net on a platform that yields what is wrong.

A check shares no code with what it checks, or compares two ways that share none.
"""

import re
from collections.abc import Mapping

from lingeronnx.errors import LingerOnnxError
from tests.fuzz.arithmetic import blocks, normalised, plain
from tests.fuzz.forms import again, deploy, file, linger, mended, qdq
from tests.fuzz.promises import ahead, alarm, promise, reason

__all__ = ["CHECKS", "failures"]

#: Name -> check, in the order in which they run.
CHECKS: Mapping = {
    "normalised": normalised, "plain": plain, "blocks": blocks, "promise": promise, "alarm": alarm, "ahead": ahead,
    "reason": reason, "file": file, "linger": linger, "qdq": qdq, "again": again, "deploy": deploy, "repair": mended,
}  # fmt: skip


def failures(made, names=None):
    """Return {check: sentences on what is wrong}; "error" is what any of them raised beside one line of ours.

    A net that `quantize` refuses in one line has "refused" alone.
    """
    found = {}
    try:
        made.result  # noqa: B018 (quantizes)
    except LingerOnnxError as error:
        return {"refused": [str(error)]}
    except Exception as error:  # any other is what is looked for
        return {"error": [told("quantize", error)]}
    for name in names or CHECKS:
        try:
            texts = [" ".join(text.split()) for text in CHECKS[name](made)]
        except Exception as error:
            found.setdefault("error", []).append(told(name, error))
            continue
        if texts:
            found[name] = texts
    return found


def told(where, error):
    """Return an exception as a sentence, with the place of ours that raised it."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if re.search(r"/(lingeronnx|simulator)/", path):
            place = f" at {'/'.join(path.split('/')[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"
