"""What is known before the run: constants, shapes, control flow that is decided, nodes that do nothing."""
