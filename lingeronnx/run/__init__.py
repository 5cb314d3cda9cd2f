"""Former place of `lingeronnx.runtime`, which version 0.3 removes."""
