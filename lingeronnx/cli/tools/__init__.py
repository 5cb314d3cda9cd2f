"""Commands on lingeronnx itself: the demo, this installation, what the targets and files are."""
