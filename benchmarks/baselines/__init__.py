"""Figures of each model, measured and compared with docs/baseline.md (`make baseline`)."""
