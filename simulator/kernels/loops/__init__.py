"""Building blocks of kernels: loops over windows and rows, register tiles, function tables."""
