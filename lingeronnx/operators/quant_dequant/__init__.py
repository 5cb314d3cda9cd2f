"""Between float and integers, and between two scales."""
