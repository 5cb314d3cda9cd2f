"""What kernels are made of: loops over windows and rows, register tiles, curves."""
