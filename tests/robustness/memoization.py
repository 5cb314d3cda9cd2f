"""What many cases compute alike is computed once: layers that `verify` tries out, templates that
`deploy` fills in, what other versions of a chip make of a graph, and valid graphs themselves.

All are functions of their arguments alone, so an outcome is what it would be without. Only
`python -m tests.robustness` asks for it, which has a process of its own. A case that takes up a
graph of an earlier one does not count as one that reaches lowering or binding.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

import jinja2

from lingeronnx.analysis.check import packer_file
from lingeronnx.analysis.sensitivity import sensitivity
from lingeronnx.deployment import comparison, version_matching
from lingeronnx.deployment.layer_subgraph import LayerSubgraph
from lingeronnx.ir import ir
from lingeronnx.quantization.report import candidate

__all__ = ["memoize_expensive_work"]


def memoize_expensive_work():
    """Let this process, and those that are forked from it, keep what has been computed."""
    LayerSubgraph.compute = _once(LayerSubgraph.compute, _layer)
    jinja2.Environment.compile = _once(jinja2.Environment.compile, _template)
    compare_versions = _once(candidate.compare_versions, _parts)
    candidate.compare_versions = packer_file.compare_versions = compare_versions
    version_matching.Session = _once(version_matching.Session, _session)
    comparison.run_feeds = _once(comparison.run_feeds, _run)
    comparison.read_integer_graph = _once(comparison.read_integer_graph, _file)
    sensitivity._plan_for_sensitivity = _once(sensitivity._plan_for_sensitivity, _plan)


@lru_cache(maxsize=64)
def _digest(model):
    """Return a digest of a graph that nobody modifies any more."""
    content = ir.to_proto(model).SerializeToString(deterministic=True)
    return hashlib.blake2b(content, digest_size=16).digest()


def _parts(parts, target):
    """Return the key of a comparison of versions: the chip, and each part with its arguments."""
    return target.name, *((_digest(part.graph), part.choice.argv) for part in parts)


def _session(model, platform, arithmetic):
    """Return the key of a session: the graph, the version of the chip and the arithmetic."""
    return _digest(model), platform.name, arithmetic


def _file(path):
    """Return the key of a file: its content, and its name, which stands in messages."""
    path = Path(path)
    return str(path), path.read_bytes() if path.is_file() else None


def _plan(model, calib, plan, settings, progress):
    """Return the key of a plan: model, data and settings; removes "config" from `settings`."""
    content = hashlib.blake2b(ir.to_proto(model).SerializeToString(deterministic=True)).digest()
    given = tuple(sorted(settings.items(), key=lambda item: item[0]))
    settings.pop("config", None)
    return content, _file(calib) if isinstance(calib, str) else calib, repr(plan), repr(given)


def _run(graph, feeds):
    """Return the key of the tensors of a sample: the graph, the chip and the inputs."""
    arrays = [
        (name, array.dtype.str, array.shape, array.tobytes()) for name, array in feeds.items()
    ]
    return _digest(graph.session.model), graph.target.name, *arrays


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
