"""Models as graphs: reading, writing and changing them, batch axes, and fixed inputs.

`ir` is the only adapter to onnx_ir. Nothing here depends on a platform or on quantization.
"""
