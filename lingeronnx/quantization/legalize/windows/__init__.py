"""Rewrites of convolutions and pools that exceed a limit."""
