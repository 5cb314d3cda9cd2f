"""Models as graphs: reading, writing, changing them, their batch axes, inputs that are fixed.

`ir` is the one adapter to onnx_ir. Knows no operator, no platform and nothing of quantization.
"""
