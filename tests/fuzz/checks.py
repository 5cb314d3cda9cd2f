"""What has to hold for every net: each check by name, a function of a net on a platform that yields
what is wrong.

A check shares no code with what it checks, or compares two ways that share none.
"""

import re
from collections.abc import Mapping

from lingeronnx.common.errors import LingerOnnxError
from tests.fuzz.arithmetic import check_batch_splits, check_normalised_graph, check_plain_classes
from tests.fuzz.packability_checks import (
    check_chip_ready,
    check_forecast,
    check_parts,
    check_reasons,
    check_refusals,
)
from tests.fuzz.serialization_checks import again, deploy, file, linger, mended, qdq

__all__ = ["CHECKS", "failures"]

#: Name -> check, in the order in which they run.
CHECKS: Mapping = {
    "normalised": check_normalised_graph,
    "plain": check_plain_classes,
    "blocks": check_batch_splits,
    "promise": check_chip_ready,
    "alarm": check_refusals,
    "parts": check_parts,
    "ahead": check_forecast,
    "reason": check_reasons,
    "file": file,
    "linger": linger,
    "qdq": qdq,
    "again": again,
    "deploy": deploy,
    "repair": mended,
}


def failures(made, names=None):
    """Return {check: sentences on what is wrong}; "error" is what any of them raised beside one
    line of ours.

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
