"""Running integer graphs: nodes become steps of the simulator, batch by batch."""
