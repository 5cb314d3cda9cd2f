"""Compare two models tensor by tensor: where they diverge, likely causes, and options to try.

This package joins two streams of tensors and owns the findings and the page that shows them. It
does not know how scales are chosen.
"""
