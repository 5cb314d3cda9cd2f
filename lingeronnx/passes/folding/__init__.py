"""What is known before the run.

Constants, shapes, control flow that is decided, nodes that do nothing.
"""
