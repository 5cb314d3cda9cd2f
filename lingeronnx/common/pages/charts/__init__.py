"""Charts of pages: one JavaScript file each, drawn as SVG from JSON data, without a network.

    base       elements, numbers as text, tooltip, colors, saving as SVG or PNG; every page has it
    network    a network as a graph, placed by layout.js and dagre
    histogram  values of a tensor with the quantization grid
    bars       horizontal bars of one or several parts
    heatmap    weights by output and input channel
    memory     the memory plan over the steps of a call
    timeline   parts and layers of a call in lanes: NPU, DMA, host
    depth      lines over the layers
    ranges     ranges of both models over the layers
    samples    range of a tensor in each sample

dagre.min.js is the layout engine @dagrejs/dagre, see dagre.LICENSE.txt.
"""

from importlib.resources import files

__all__ = ["read_charts"]

#: Files that a chart needs in addition to its own.
_REQUIRED = {"network": ("dagre.min", "layout"), "ranges": ("depth",)}


def read_charts(*names: str) -> str:
    """Return the scripts of charts, with the files that they need, as one text of JavaScript."""
    stems = dict.fromkeys(stem for name in names for stem in (*_REQUIRED.get(name, ()), name))
    folder = files(__package__)
    return "\n".join((folder / f"{stem}.js").read_text(encoding="utf-8") for stem in stems)
