"""Random float nets, and everything that has to hold for each of them; `python -m tests.fuzz` runs
any number.

draw        a net in the making: random choices, the shape of every tensor
families/   one file for each kind of net: `build(draw)` returns the outputs
nets        (family, seed) -> the net and its data
checks      what has to hold, each check by name
shrink      a failing net -> the smallest that still fails
journal     finished nets as lines of JSON, and the tables made of them
"""
