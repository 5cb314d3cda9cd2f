"""Looking at models and quantizations.

Each file one kind of question, each answer a value that can be printed.
"""
