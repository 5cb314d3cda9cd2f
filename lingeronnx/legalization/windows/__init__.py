"""Convolutions and pools that break a limit: smaller ones, or others that compute the same."""
