"""Names that attack each language that lingeronnx writes, and a model that has no other names."""

import itertools

import numpy as np
import onnx
from onnx import helper

from tests import nets

__all__ = [
    "FILE_NAME",
    "NAMES",
    "NAMES_BY_LANGUAGE",
    "SENTINEL",
    "TERMINAL_MARKS",
    "build_hostile_model",
    "rename_everything",
]

#: File that injected code would create in the working directory.
SENTINEL = "INJECTED"
_RUN = f'__attribute__((constructor)) static void f(void) {{ system("touch {SENTINEL}"); }}'
#: Bytes that lingeronnx itself never writes, on no terminal: each is in one of the names.
TERMINAL_MARKS = (
    b"\x1b]",
    b"\x1b[5;7m",
    b"\x1bc",
    b"\x9b",
    b"\x07",
    b"\x08",
    b"\x7f",
    b"\xe2\x80\xae",
)

NAMES_BY_LANGUAGE = {
    "C": (
        f"*/ extern int system(const char *); {_RUN} /*",
        f"\n#include <stdlib.h>\n{_RUN}\n",
        '#define main evil\n#error "injected"',
        "?" + "?/\n" + f"*/ {_RUN}",  # a trigraph for a backslash at the end of a line
        "*\\\n/ int injected; /*",
        f'"; }} {_RUN} char *s = "',
        "'\"\\",
        "// comment \\",
        "%s%n%n%n%p",
        "int",
        "malloc",
    ),
    "shell": (
        f"$(touch {SENTINEL})",
        f"`touch {SENTINEL}`",
        f"'; touch {SENTINEL}; '",
        f"\n\ttouch {SENTINEL}\n",
        f"$(shell touch {SENTINEL})",
        f'")\nexecute_process(COMMAND touch {SENTINEL})\nmessage("',
        "-rf",
    ),
    "HTML": (
        "<script>alert(1)</script>",
        "</script><script>alert(2)</script>",
        "</title></style></svg></textarea><img src=x onerror=alert(3)>",
        "\" onmouseover=alert(4) x='",
        "<!--",
        "]]>&lt;&#x3c;script&#x3e;",
    ),
    "spreadsheet": (
        '=HYPERLINK("http://evil.example","click")',
        "+1+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(1+1)",
        "\t=1+1",
        "\r=1+1",
        'a";=1+1;"',
        "\uff1d1+1",
    ),
    "terminal": (
        "\x1b[31mred\x1b[0m",
        "\x1b[5;7mINJECTED",
        "\x1b]0;title\x07",
        "\x1bc",
        "\x9b2J",
        "a\x08\x08\x7fb",
        "line\r\x0bover\x0c",
        "\u202etxt.exe\u202c",
        "zero\u200bwidth\ufeff",
        "line\u2028separator\u2029\x85",
        "\U000e0041\U000e007f",
        "chip-ready yes\nwarning: none",
    ),
    "Markdown, Graphviz, rich, TeX": (
        "| a | b |\n|---|---|",
        "[click](http://evil.example) ![x](http://evil.example/x.png)",
        "# head\n> quote\n* item\n```\ncode",
        '"]; a -> b [label="',
        "[bold red]x[/] [/nothing]",
        "$\\evil{$ $\\frac{1}{$",  # TeX, for matplotlib
    ),
    "path": (
        "../../" + SENTINEL,
        f"/usr/../{SENTINEL}",
        "..\\..\\" + SENTINEL,
        "CON",
    ),
    "other": (
        "с\u043env",  # Cyrillic letters
        "名字é",
        "x" * 3000,
        " ",
        "a  b",
        "{0} {name} %(x)s ${y}",
    ),
}
#: All of them; neighbours attack different languages.
NAMES = tuple(
    name
    for turn in itertools.zip_longest(*NAMES_BY_LANGUAGE.values())
    for name in turn
    if name is not None
)

#: A name of a file without its suffix; no "/" and no NUL.
FILE_NAME = (
    f"=m*$(touch {SENTINEL})`touch {SENTINEL}`\x1b[5;7mx\x1b]0;t\x07\u202e\n'\"<script>|;@%s\\"
)


def rename_everything(model, names=NAMES):
    """Give every tensor, node, graph, doc string, metadata entry and opset domain of `model` a name
    of the list, in place; all names are used if the model has enough parts.

    Returns {old tensor name: new}.
    """

    def supply_names():
        for turn in itertools.count():
            yield from names if turn == 0 else (f"{name}{turn}" for name in names)

    tensor_names, node_names, texts = supply_names(), supply_names(), supply_names()
    tensors = {}

    def rename(name):
        if name and name not in tensors:
            tensors[name] = next(tensor_names)
        return tensors.get(name, "")

    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name, value.doc_string = rename(value.name), next(texts)
    for tensor in graph.initializer:
        tensor.name, tensor.doc_string = rename(tensor.name), next(texts)
    for node in graph.node:
        node.name, node.doc_string = next(node_names), next(texts)
        for side in (node.input, node.output):
            for index, name in enumerate(side):
                side[index] = rename(name)
    graph.name, graph.doc_string, model.doc_string = next(texts), next(texts), next(texts)
    model.producer_name, model.producer_version, model.domain = (next(texts) for _ in range(3))
    for item in (model, graph, *graph.node, *graph.input, *graph.initializer):
        for _ in range(2):
            item.metadata_props.add(key=next(texts), value=next(texts))
    for value in (*graph.input, *graph.output):
        value.type.denotation = next(texts)
    return tensors


def _add_function(model):
    """Let a function with a hostile name and domain compute the first Relu."""
    domain, name = NAMES_BY_LANGUAGE["C"][0], NAMES_BY_LANGUAGE["shell"][0]
    node = next(node for node in model.graph.node if node.op_type == "Relu")
    node.op_type, node.domain = name, domain
    body = helper.make_node("Relu", [NAMES[1]], [NAMES[2]], name=NAMES[3], doc_string=NAMES[4])
    model.functions.append(
        helper.make_function(
            domain, name, [NAMES[1]], [NAMES[2]], [body], model.opset_import, doc_string=NAMES[5]
        )
    )
    model.opset_import.append(helper.make_opsetid(domain, 1))


def build_hostile_model(names=NAMES, has_function=True):
    """Build a model with two chip parts, and host parts between and behind them.

    Returns
    -------
    model : onnx.ModelProto
        Every name and text is hostile.
    data : dict of str to np.ndarray
        Samples by input name.
    """
    net = nets.Net(3, 8, 8, seed=11)
    a = net.node("Relu", net.conv("x", (6, 3, 3, 3), pads=[1] * 4))
    e = net.node("Softmax", net.node("Mul", a, net.const(np.float32(0.7))), axis=1)
    b = net.node(
        "Concat",
        net.conv(e, (4, 6, 3, 3), pads=[1] * 4),
        net.conv("x", (4, 3, 3, 3), pads=[1] * 4),
        axis=1,
    )
    flat = net.node("Flatten", net.node("Relu", b))
    net.node("Softmax", net.linear(flat, (512, 5)), axis=1, out="y")
    model = net.proto("y")
    if has_function:
        _add_function(model)
    rename_everything(model, names)
    onnx.checker.check_model(model)
    x = np.random.default_rng(0).standard_normal((20, 3, 8, 8)).astype(np.float32)
    return model, {model.graph.input[0].name: x}
