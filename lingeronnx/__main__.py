"""``python -m lingeronnx`` is the command ``lingeronnx``."""

from .cli import main

main(prog_name="lingeronnx")
