"""Sum, difference, product and quotient of two tensors."""
