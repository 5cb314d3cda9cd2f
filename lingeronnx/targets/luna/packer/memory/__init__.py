"""Where the packer puts tensors and work areas, and what goes wrong there."""
