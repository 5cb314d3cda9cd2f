"""What only moves data: the order of axes, and parts of tensors."""
