"""Rules of operators that move data; the scale is unchanged or shared."""
