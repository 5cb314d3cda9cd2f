"""Write an integer graph in standard ONNX that computes the simulator's integers bit-exactly.

    tie_offsets   offsets added before a QuantizeLinear so that ties round up; proved by bounds, or
                  rejected with a reason
    nodes         standard operators on 64-bit integers: shifts, saturation, requantization, tables
    layers        kernels with sums, tables and pools, in such nodes
    rows          softmax and layer normalization
    recurrent     recurrent layers, with a Scan over the steps
    functions     a kernel's nodes as a model-local function
    write         the graph: `qdq_writer` with tie offsets, and functions if requested
    verification  comparison with the simulator
    exact_file    the verified file and its report

Works on kernels of the simulator, independent of operators and chips.
"""
