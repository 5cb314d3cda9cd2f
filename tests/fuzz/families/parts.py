"""Several chip parts with a function of the host between them: the first gives integers to the
second and floats to the host or as graph outputs, with and without Dequants, in any order.
"""

__all__ = ["build"]


def build(net):
    """Draw a net of two chip parts or more."""
    x = net.enter(net.between(2, 4), net.between(4, 9), net.between(4, 9))
    a = net.act(net.convolve(x, net.between(2, 8), 3), "Relu")
    kept = net.convolve(a, net.between(2, 6), net.pick(1, 3))
    channels = net.size[kept][0]
    source = net.convolve(a, channels, 1) if net.chance(0.5) else a
    late = net.add_elementwise("Sin", source)
    for _ in range(net.pick(0, 0, 1)):  # a third part
        late = net.add_elementwise("Sin", net.convolve(late, channels, 1))
    late = net.convolve(late, channels, net.pick(1, 3))
    pair = net.pick((late, kept), (kept, late))
    joined = net.add_elementwise("Add", *pair) if net.chance(0.5) else net.concat(*pair)
    outputs = [net.convolve(net.act(joined, "Relu", "none"), net.between(2, 5), 1)]
    if net.chance(0.5):
        outputs.insert(net.pick(0, 1), net.convolve(a, net.between(2, 5), 1))
    return [*outputs, kept] if net.chance(0.3) else outputs
