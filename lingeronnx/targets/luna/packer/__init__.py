"""What the vendor's packer makes of an integer graph, known without it: limits, memory plan, verdict, arguments."""
