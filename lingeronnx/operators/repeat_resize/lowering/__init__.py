"""The lowering rules of repetition, padding and resizing."""
