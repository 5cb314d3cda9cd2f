"""Run integer graphs: nodes become steps of the simulator, which run batch by batch."""
