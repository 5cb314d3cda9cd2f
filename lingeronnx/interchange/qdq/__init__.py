"""Export to and import from graphs of QuantizeLinear and DequantizeLinear (QDQ).

    qdq_writer    integer graph -> standard ONNX, every integer tensor between a QuantizeLinear and
                  a DequantizeLinear
    batch_axis    a dynamic batch in the standard graph of an integer graph for one sample
    difference    differences between onnxruntime's results for that graph and the simulator's, by
                  operator
    import_model  quantized model of another tool -> its float graph and its scales
    encodings     scales in the JSON file of another tool
    qoperators    onnxruntime's integer operators (QLinearConv ...) -> QDQ
    qoperator     QDQ -> the integer operators of standard ONNX

The format of an integer operator defines its float model. Must not know: calibration, chips.
"""
