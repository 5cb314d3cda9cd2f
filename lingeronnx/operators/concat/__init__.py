"""Concatenation."""
