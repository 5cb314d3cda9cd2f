"""Rules of layers, pools, norms and products: what sums."""
