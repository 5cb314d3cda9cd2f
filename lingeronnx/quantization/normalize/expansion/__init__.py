"""Expand composite operators: direct compositions, and the function bodies of the standard."""
