"""Recurrent layers: step by step over a sequence, with the arithmetic of each chip and of the training side."""
