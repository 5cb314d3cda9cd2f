"""Evaluation before the run: constants, shapes, static control flow, and nodes without effect."""
