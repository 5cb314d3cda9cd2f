"""From a file to the steps that the packer plans."""
