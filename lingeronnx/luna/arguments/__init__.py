"""Choice of the packer's arguments for a graph: candidates, local search, selection by latency."""
