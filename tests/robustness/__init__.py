"""Hostile input: files, options and functions that nobody should give us, through the commands and
the calls.

Whatever comes in, the user gets a result or one line. `python -m tests.robustness` says how much of
that is so; see docs/explanation/reliability.md.
"""
