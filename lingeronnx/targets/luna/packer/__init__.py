"""What the vendor's packer makes of an integer graph, known without it.

Limits, memory plan, verdict, arguments.
"""
