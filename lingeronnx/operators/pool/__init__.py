"""Average and maximum of windows, and of all positions."""
