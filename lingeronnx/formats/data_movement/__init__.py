"""Formats of what only moves data."""
