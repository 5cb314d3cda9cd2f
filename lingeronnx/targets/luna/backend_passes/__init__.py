"""The integer graph as a chip's packer wants it: its forms, tiles of rows.

Stands on `fit` and the packer's rules; changes no integer of what the graph computes.
"""
