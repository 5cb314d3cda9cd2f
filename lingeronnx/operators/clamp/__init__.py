"""Relu, Clip and LeakyRelu."""
