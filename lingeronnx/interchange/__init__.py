"""Quantized models of other tools and in other forms: QDQ, conversion, repair of old graphs."""
