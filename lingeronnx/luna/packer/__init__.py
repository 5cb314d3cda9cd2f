"""Predict how the vendor's packer treats an integer graph, without running the packer.

Node limits, the memory plan, the verdict, and the choice of the packer's arguments.
"""
