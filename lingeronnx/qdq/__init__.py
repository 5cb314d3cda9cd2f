"""Graphs of QuantizeLinear and DequantizeLinear.

Written from integer graphs, read into float ones with their scales.
    write       integer graph -> standard ONNX, every integer tensor between a QuantizeLinear and a
    DequantizeLinear difference  how far what onnxruntime computes for that is from the simulator,
    operator by operator read        a model that another tool has quantized -> its float graph, and
    the scales that it had operators   the operators on integers that onnxruntime writes
    (QLinearConv ...), as QuantizeLinear and so on

What an integer operator means in real numbers its format says. Knows nothing of plans, calibration
or chips.
"""
