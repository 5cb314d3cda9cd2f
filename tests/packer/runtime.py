"""What packs and does not run, or runs wrong."""


def faults(model, before, graph, memory, settings):
    return []
