"""Commands about lingeronnx itself: demo, installation, targets and file schemas."""
