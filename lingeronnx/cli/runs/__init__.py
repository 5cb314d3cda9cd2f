"""Commands that run a model on data."""
