"""Limits of single nodes, one file per kind of operator."""
