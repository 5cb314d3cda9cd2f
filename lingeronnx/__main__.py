"""``python -m lingeronnx`` is the command ``lingeronnx``."""

from .cli import main

if __name__ == "__main__":  # a worker process imports this file again under another name
    main(prog_name="lingeronnx")
