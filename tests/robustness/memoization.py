"""What many cases compute alike is computed once: layers that `verify` tries out, templates that
`deploy` fills in.

Both are functions of their arguments alone, so an outcome is what it would be without. Only
`python -m tests.robustness` asks for it, which has a process of its own; there these two took three
quarters of all time.
"""

import hashlib

import jinja2

from lingeronnx.deployment.layer_subgraph import LayerSubgraph

__all__ = ["memoize_expensive_work"]


def memoize_expensive_work():
    """Let this process, and those that are forked from it, keep what has been computed."""
    LayerSubgraph.compute = _once(LayerSubgraph.compute, _layer)
    jinja2.Environment.compile = _once(jinja2.Environment.compile, _template)


def _once(function, key):
    """Return `function`, called once for all arguments of which `key` says the same."""
    results = {}

    def called(*args, **options):
        name = key(*args, **options)
        if name not in results:
            results[name] = function(*args, **options)
        result = results[name]
        return result.copy() if hasattr(result, "copy") else result

    return called


def _layer(layer):
    """Return a digest of all that a layer's integers depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for node in layer.nodes:
        digest.update(node.SerializeToString(deterministic=True) + b"\n")
    for arrays in (layer.inputs, layer.constants):
        for name, array in arrays.items():
            digest.update(repr((name, array.dtype.str, array.shape)).encode() + array.tobytes())
    opsets = [(opset.domain, opset.version) for opset in layer.source_model.opset_import]
    digest.update(
        repr((layer.output, layer.platform, layer.source_model.ir_version, opsets)).encode()
    )
    return digest.digest()


def _template(environment, source, *args, **options):
    """Return what the code of a template depends on."""
    escaped = environment.autoescape
    settings = (
        environment.trim_blocks,
        environment.lstrip_blocks,
        escaped(args[0]) if callable(escaped) else escaped,
    )
    return (
        str(source),
        args,
        tuple(sorted(options.items())),
        settings,
        tuple(environment.extensions),
    )
