"""Explain onnxruntime's errors in one line.

Its messages begin with codes and function signatures. Known messages are replaced by an explanation
with a remedy; of others, the text after the last signature remains.
"""

from __future__ import annotations

import re

__all__ = ["explain_ort_error"]

#: (pattern of onnxruntime's message, replacement).
_ERROR_PATTERNS = (
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        (
            r"its file format, IR version \1, is newer than the supported one (\2); save the model "
            r"with an older onnx"
        ),
    ),
    (
        r"ONNX Runtime only \*guarantees\*.* for domain (\S+) is till opset (\d+)",
        (
            r"an operator has a version newer than opset \2 of \1, the newest supported one; "
            r"export with an older opset"
        ),
    ),
    (
        r"(?:Could not find an implementation|Failed to find kernel) for (\w+)\((\d+)\)",
        (
            r"it has no \1 (version of opset \2) for these types; export the model with other "
            r"operators, or in float32"
        ),
    ),
    (
        r"(?:Fatal error: )?(\S+?)\(-1\) is not a registered function/op",
        r"it does not know the operator \1; export the model with standard operators",
    ),
    (
        r"Unrecognized attribute: (\w+) for operator (\w+)",
        r"it does not know the attribute \1 of \2; export with an older opset",
    ),
    (r"Node \(([^)]*)\) Op \((\w+)\) \[\w+Error\] (.+)", r"\2 \1: \3"),
    (
        r"Type parameter \((\w+)\) of Optype \((\w+)\) bound to different types \((.+?)\)? in node",
        r"\2 has operands of different types, \3",
    ),
    (
        (
            r"Type '(.+?)' of input parameter \((\S+)\) of operator \((\w+)\) in node \((.*?)\) is "
            r"invalid"
        ),
        r"\3 \4: its input '\2' may not be of type \1",
    ),
    (
        r"Failed to construct locale with name:\s*([\w.-]+)",
        r"this computer has no locale \1; install it",
    ),
    (r"while running (\w+) node\. Name:'(.*?)' Status Message: (.+)", r"\1 \2: \3"),
)
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_CONTEXT = re.compile(r" *==> Context.*$")
_CONDITION = re.compile(r"(?:Exception during initialization: )?[^.]*\bstd::[^.]* was false\.")
_SOURCE_LOCATION = re.compile(r"\S*/onnxruntime_src/\S+:\d+ |\b\w+\.(cc|cpp|h):\d+ (\w+ )?")
_DROPPED = re.compile(
    r"^[^.]* was false\. |^\[with .*?\] | If you need support create a github issue.*$"
)


def explain_ort_error(error: Exception) -> str:
    """Explain an exception of onnxruntime in one line.

    Error codes, contexts and source locations are removed; known messages are replaced by an
    explanation with a remedy.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    message = _CODE.sub("", " ".join(line.strip() for line in lines))
    text = _CONTEXT.sub("", _strip_source_location(message))
    while (shorter := _strip_source_location(text)) != text:  # messages may be nested
        text = shorter
    text = _CONDITION.sub("a size or an index in it is out of range", text).replace("std::", "")
    for pattern, replacement in _ERROR_PATTERNS:
        if match := re.search(pattern, text):
            return " ".join(match.expand(replacement).split())
    return text


def _strip_source_location(text: str) -> str:
    """Remove the first location in onnxruntime's sources, and the function signature after it.

    The text before it is kept; a text without a location is returned unchanged.
    """
    match = _SOURCE_LOCATION.search(text)
    if match is None:
        return text
    depth, remainder = 0, text[match.end() :]
    for index, char in enumerate(remainder):
        depth += (char == "(") - (char == ")")
        if char == ")" and not depth and remainder[index + 1 : index + 2] in (" ", ""):
            remainder = remainder[index + 1 :].removeprefix(" const").lstrip()
            break
    for _ in range(2):
        remainder = _DROPPED.sub("", remainder)
    return text[: match.start()] + remainder
