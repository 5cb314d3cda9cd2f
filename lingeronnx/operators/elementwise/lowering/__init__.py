"""The lowering rules of elementwise arithmetic."""
