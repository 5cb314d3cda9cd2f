"""Check a model against the limits of a target, before calibration or as an integer graph.

This package owns the rules for complete graphs and the description of a model's structure. It does
not run models over data.
"""
