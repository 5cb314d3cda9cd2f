"""Rules of what only moves data: scales pass through, or become one."""
