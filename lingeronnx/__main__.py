"""The command ``lingeronnx``, also as ``python -m lingeronnx``.

Imports nothing before it can answer Ctrl-C in one line.
"""

import gc
import sys

__all__ = ["main"]

#: New objects before cyclic garbage is looked for: modules and graphs stay, and the default of 700
#: searches them hundreds of times, which takes a tenth of a command's time.
_COLLECTION_THRESHOLD = 500_000


def main() -> None:
    """Run the command line; Ctrl-C, also while modules are imported, ends it with exit code 130.

    Then the only message is the line "interrupted" on stderr.
    """
    gc.set_threshold(_COLLECTION_THRESHOLD)
    try:
        from .cli import main as command

        command(prog_name="lingeronnx")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":  # a worker process imports this file again under another name
    main()
