"""Attacks on the real commands: what is killed, full, closed, forbidden or done twice at once."""
