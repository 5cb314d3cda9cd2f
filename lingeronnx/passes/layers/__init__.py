"""Layers with weights, and pools: one form for each, and what is folded into them."""
