"""The lowering rules of activations by tables."""
