"""Functions of one number, and of a row of them: one node for each."""
