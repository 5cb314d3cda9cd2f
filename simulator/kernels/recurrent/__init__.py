"""Recurrent layers over sequences, in the arithmetic of each chip and of training libraries."""
