"""Factor and offset per channel."""
