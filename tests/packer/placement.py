"""Where each tensor lies."""


def get_placements(graph, settings):
    """Return the place of each tensor by name."""
    result = {}
    for name, tensor in graph.tensors.items():
        if tensor.const is not None:
            result[name] = settings.params
        elif name in settings.places:
            result[name] = settings.places[name]
        else:
            result[name] = (
                "psram" if tensor.elements * tensor.bytes > settings.threshold(4) else "share-mem"
            )
    return result
