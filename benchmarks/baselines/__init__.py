"""Figures of each model, measured and compared with benchmarks/results/baseline.md (`make baseline`)."""
