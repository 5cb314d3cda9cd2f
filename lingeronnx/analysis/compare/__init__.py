"""Two models tensor by tensor: where they part, what may have caused it, and what to try.

Owns the joining of two streams, the findings and the page that shows them. Knows nothing of how
scales are chosen.
"""
