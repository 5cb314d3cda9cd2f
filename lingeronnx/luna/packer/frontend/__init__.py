"""Reading of an ONNX file into the steps that the packer plans."""
