"""Generate the C program of a deployed model.

It calls chip parts through the executor, contains the host parts as C, and converts and keeps the
tensors between them.

    program          parts, buffers, states and memory of one call, as values
    host_source      host parts as C, by emx-onnx-cgen
    source_files     the program's files, from `templates/`
    packages         the header in front of each package
    vectors          one call as C arrays, for the self-test
    build            compiling the program on a PC
    host_proof       proving it on a PC against the stand-in executor

Must not know: commands, torch.
"""
