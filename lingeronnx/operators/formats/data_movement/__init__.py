"""Integer operators that only move data."""
