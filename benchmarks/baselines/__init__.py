"""Figures of each model, compared with benchmarks/results/baseline.md (`make baseline`)."""
