"""Rules of functions of one number, by tables or put together."""
