"""Analysis of models and quantizations.

Each module answers one kind of question with a value that can be printed.
"""
