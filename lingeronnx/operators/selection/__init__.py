"""Slice, Split, Gather and ArgMax."""
