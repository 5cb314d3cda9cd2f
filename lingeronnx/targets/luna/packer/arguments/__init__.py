"""The packer's arguments for a graph: candidates, what is mended in them, the choice."""
