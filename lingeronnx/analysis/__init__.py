"""Looking at models and quantizations: each file one kind of question, each answer a value that can be printed."""
