"""An integer graph in standard ONNX that gives the simulator's integers bit for bit.

    amounts    what is added in front of a QuantizeLinear so that ties go up; proved by bounds, or
    refused with a reason nodes      standard operators on 64-bit integers: shifts, saturation,
    requantization, tables layers     what kernels with sums, tables and pools compute, in such
    nodes; rows: softmax and layer normalisation; recurrent  recurrent layers, a Scan for the steps
    functions  a kernel's nodes as a model-local function
    write      the file: `qdq.write` with amounts, and functions where they are wanted

Knows kernels of the simulator, whatever operator or chip they belong to.
"""
