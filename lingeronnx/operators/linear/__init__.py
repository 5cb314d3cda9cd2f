"""Matrix products: by a constant weight, and of two activations."""
