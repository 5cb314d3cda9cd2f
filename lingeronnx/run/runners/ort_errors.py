"""Why onnxruntime refuses a model or a run, in one line of plain words.

Its own texts begin with codes and the signatures of its functions. What is known of them is said in
words of ours, with the remedy; of the rest stays what stands behind the last signature.
"""

from __future__ import annotations

import re

__all__ = ["explain_ort_error"]

#: What onnxruntime says -> what a user reads.
_ERROR_PATTERNS = (
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        (
            r"its file format, IR version \1, is newer than it reads (\2); save the model with an "
            r"older onnx"
        ),
    ),
    (
        r"ONNX Runtime only \*guarantees\*.* for domain (\S+) is till opset (\d+)",
        (
            r"an operator has a form that is newer than opset \2 of \1, the newest it reads; export "
            r"with an older opset"
        ),
    ),
    (
        r"(?:Could not find an implementation|Failed to find kernel) for (\w+)\((\d+)\)",
        (
            r"it has no \1 (form of opset \2) for these types; export the model with other operators, "
            r"or in float32"
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
_PLACE = re.compile(r"\S*/onnxruntime_src/\S+:\d+ |\b\w+\.(cc|cpp|h):\d+ (\w+ )?")
_DROPPED = re.compile(
    r"^[^.]* was false\. |^\[with .*?\] | If you need support create a github issue.*$"
)


def explain_ort_error(error: Exception) -> str:
    """Return why onnxruntime raised `error`."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = _CONTEXT.sub("", _without_place(_CODE.sub("", " ".join(line.strip() for line in lines))))
    while (shorter := _without_place(text)) != text:  # one place told another
        text = shorter
    text = _CONDITION.sub("a size or an index in it is out of range", text).replace("std::", "")
    for pattern, words in _ERROR_PATTERNS:
        if found := re.search(pattern, text):
            return " ".join(found.expand(words).split())
    return text


def _without_place(text: str) -> str:
    """Return `text` without the place in onnxruntime's sources and the function that it names."""
    found = _PLACE.search(text)
    if found is None:
        return text
    depth, behind = 0, text[found.end() :]
    for at, letter in enumerate(behind):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and not depth and behind[at + 1 : at + 2] in (" ", ""):
            behind = behind[at + 1 :].removeprefix(" const").lstrip()
            break
    for _ in range(2):
        behind = _DROPPED.sub("", behind)
    return text[: found.start()] + behind
