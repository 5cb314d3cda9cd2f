"""Rules of elementwise functions: lookup tables and compositions."""
