"""Commands that make a model or a folder out of one."""
