"""The lowering rules of softmax and layer normalization."""
