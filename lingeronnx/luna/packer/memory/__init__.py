"""The packer's memory plan, work areas, and the errors that placements and overruns cause."""
