"""Backend passes: rewrite the integer graph for a chip's packer without changing its results.

Works around faults of packer and executor, tiles large feature maps and reduces cost. Builds on
`quantization.legalize` and the packer's rules.
"""
