"""A user's graph made readable: sound, of one opset and one float type, with a free batch."""
