"""Data movement: the order of axes, and parts of tensors."""
