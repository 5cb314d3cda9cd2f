"""What of a model breaks the limits of a target, before calibration or in an integer graph.

Owns the rules of whole graphs and what a model looks like inside. Runs no model over data.
"""
