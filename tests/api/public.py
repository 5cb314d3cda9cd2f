"""What `public.json` holds: the names, commands and options that docs/reference/stability.md
promises.

    python -m tests.api.public

writes the file anew, with what is there now. What a release promised stays until a minor version
that follows one in which it warned; so lines are added freely, and taken out only with such a
version.
"""

import ast
import json
from pathlib import Path

import lingeronnx
from lingeronnx import cli

FILE = Path(__file__).with_name("public.json")


def torch_names():
    """Return the names of lo.torch, read from its source: torch need not be there."""
    tree = ast.parse((Path(lingeronnx.__file__).parent / "torch" / "__init__.py").read_text())
    (home,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_HOME"
    )
    return sorted(ast.literal_eval(home))


def options(command):
    """Return every spelling of every option, and the arguments, as help shows them."""
    found = {spelling for each in command.params for spelling in (*each.opts, *each.secondary_opts)}
    return sorted(found - {"--help", "-h"})


def public():
    """Return {where: names} of this version."""
    return {
        "lingeronnx": sorted(lingeronnx.__all__),
        "lingeronnx.compat": sorted(lingeronnx.compat.__all__),
        "lingeronnx.torch": torch_names(),
        **{
            f"lingeronnx {name}": options(command)
            for name, command in sorted(cli.main.commands.items())
        },
    }


def main():
    FILE.write_text(json.dumps(public(), indent=1) + "\n")


if __name__ == "__main__":
    main()
