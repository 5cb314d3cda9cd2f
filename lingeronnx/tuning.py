"""Fine-tuning: the quantizing flow with training in place of refinement.

    prepare (plan) -> bridge -> train -> weights and scales back into graph and plan -> lower

The training itself is `lingeronnx.torch`'s, imported only when it is needed. Owns: what the user
may say about it, which nodes the selectors mean, re-estimated batch normalisation. Must not know:
torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ConfigError, suggest_nearest
from .flow import (
    PlannedModel,
    QuantizedModel,
    RefinementOptions,
    build_quantized_model,
    measure_accuracy,
    plan_model,
    prepare_model,
    refine_weights,
)
from .flow.lower import lower
from .graph import ir
from .qdq.encodings import Encodings
from .run.data import Data, Progress, load_function
from .run.evaluation import evaluate
from .run.runners import FloatRunner, get_input_specs
from .run.session import open_lowered_session

if TYPE_CHECKING:
    from .torch.qat.qat_module import QatModule

__all__ = ["finetune"]

#: What a constraint may speak of.
_LIMIT_KINDS = ("weight", "bias", "output")


def finetune(
    model: ir.ModelLike,
    train: object,
    eval_data: object = None,
    *,
    metric: str | None = None,
    loss: str | Callable[..., Any] = "distill",
    clamp_weight: float | str | None = None,
    clamp_bias: float | str | None = None,
    clamp_output: float | None = None,
    constraints: Mapping[str, Mapping[str, float | str] | None] | None = None,
    freeze: Iterable[str] = (),
    batch_norm: str = "frozen",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    state_dict: object = None,
    progress: Progress | None = None,
    **settings: Any,
) -> QuantizedModel:
    """Quantize `model`, train it through the chip's arithmetic, and write the integer graph of the result.

    Parameters
    ----------
    model
        A path, or a float model in memory, which is left as it is.
    train
        What to train on, as `quantize` takes calibration data. Only the loss "labels" needs labels.
    eval_data, metric
        The best epoch is kept, or the start where none is better: by `metric` on `eval_data`, as by
        `evaluate`; without `eval_data` by the loss over the training samples.
    loss
        "distill" (the float model's outputs), "labels", or a function or ``file.py:function`` of
        (outputs, targets, labels), dicts of tensors by name, that returns a scalar tensor.
    clamp_weight, clamp_bias, clamp_output
        Largest |value| in all layers; "p99.9" is that percentile of a parameter's own values.
        Outputs are clamped during training only.
    constraints
        Selector -> {"weight", "bias", "output": value} for some layers; None for layers without any
        limit.
    freeze
        Selectors of layers that are not trained.
    batch_norm
        "frozen", or "reestimate": its statistics are taken anew from `train` before it is folded.
    checkpoint, resume
        A file that keeps the state of training, and whether to go on from it.
    state_dict
        A checkpoint of the user's torch model that is put onto the graph first.
    settings
        Those of `quantize`, and the fields of `lingeronnx.torch.finetune.Recipe`.

    Raises
    ------
    ConfigError
        For wrong settings, where PyTorch is not installed, and where the loss becomes NaN or
        infinite.
    """
    from .torch.finetune import Constraints, Recipe, Tuner
    from .torch.finetune.samples import Samples
    from .torch.qat.qat_module import QatModule

    if train is None:
        raise ConfigError("fine-tuning needs data to train on: give --train DATA")
    fields = {
        key: settings.pop(key)
        for key in list(settings)
        if key in Recipe.__dataclass_fields__ and key != "seed"
    }
    if isinstance(loss, str) and loss not in ("distill", "labels"):
        loss = load_function(loss, "loss")
    recipe = Recipe(loss=loss, seed=settings.get("seed") or 0, **fields)
    if batch_norm not in ("frozen", "reestimate"):
        raise ConfigError(f"batch_norm '{batch_norm}'; it is frozen or reestimate")
    source = ir.as_owned_model(model)
    if state_dict is not None:
        from .torch.checkpoint.parameters import load_checkpoint

        load_checkpoint(source, state_dict)
    if batch_norm == "reestimate":
        reestimate_batch_norm(
            source,
            Data(train, get_input_specs(source), limit=settings.get("limit"), what="training data"),
        )
    plan = settings.pop("plan", None)
    lent, own = (plan, None) if isinstance(plan, Encodings) else (None, plan)
    prepared = prepare_model(
        source, train, settings.pop("config", None), settings, hold_out=False, encodings=lent
    )
    if isinstance(model, str | os.PathLike):
        prepared = replace(prepared, stem=Path(model).stem + "_quant")
    ready = plan_model(prepared, own, progress)
    methods = RefinementOptions.all() if prepared.conf.effort == "best" else RefinementOptions()
    # Soft rounding decides anew where each weight goes; everything else begins where refinement
    # ends.
    start = ready.graph if recipe.rounding == "soft" else refine_weights(ready, methods)
    bridge = QatModule(start, ready.plan, prepared.target, prepared.data.first())
    limits = _resolve_limits(
        ready,
        bridge,
        {"weight": clamp_weight, "bias": clamp_bias, "output": clamp_output},
        constraints or {},
    )
    frozen = frozenset(_select_parameters(ready, bridge, freeze))

    def measure() -> float:
        exact = bridge.partition.with_graph(replace_initializers(start, bridge.get_weights()))
        session = open_lowered_session(
            lower(exact, bridge.plan, prepared.target).graph, prepared.target
        )
        found = evaluate(session, eval_data, metric=metric, baseline=source, progress=None)
        return -found.value if found.metric == "mse" else found.value

    tuner = Tuner(
        bridge,
        ready.graph,
        Samples(prepared.data, recipe.device),
        recipe,
        Constraints(limits["weight"] | limits["bias"], limits["output"], frozen),
        evaluate=None if eval_data is None else measure,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        resume=resume,
        progress=progress,
    )
    history = tuner.run()
    notes = [*ready.notes, *_format_untrained_note(bridge)]
    tuned = replace(ready, plan=bridge.plan, notes=notes)
    done = build_quantized_model(
        prepared, tuned, replace_initializers(start, bridge.get_weights()), progress
    )
    done = replace(done, report=replace(done.report, training=[vars(line) for line in history]))
    if eval_data is None:
        return done
    return measure_accuracy(
        done, eval_data, model, budget=prepared.conf.budget, metric=metric, progress=progress
    )


def _format_untrained_note(bridge: QatModule) -> list[str]:
    names = bridge.untrainable_initializers
    if not names:
        return []
    return [
        f"not trained, since integer layers hold them in another form: {', '.join(names[:5])}"
        + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    ]


def replace_initializers(graph: ir.Model, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of the float `graph` with other values in some initializers."""
    copy = ir.clone(graph)
    for name, array in weights.items():
        copy.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return copy


# ---- which layers ------------------------------------------------------------------------------------------------


def _select_layers(ready: PlannedModel, selector: str) -> list[ir.Node]:
    """Return the nodes of the planned graph that a selector on the user's graph stands for."""
    found = ready.selectors(ready.graph).resolve_nodes(selector)
    if not found:
        raise ConfigError(
            f"selector '{selector}': what it names is folded into its neighbours; name the layer "
            "before"
        )
    return found


def _trainable_inputs(node: ir.Node, bridge: QatModule) -> list[str]:
    return [str(v.name) for v in node.inputs if v is not None and v.name in bridge.parameter_of]


def _select_parameters(
    ready: PlannedModel, bridge: QatModule, selectors: Iterable[str]
) -> list[str]:
    return [
        name
        for selector in selectors
        for node in _select_layers(ready, selector)
        for name in _trainable_inputs(node, bridge)
    ]


def _resolve_limits(
    ready: PlannedModel,
    bridge: QatModule,
    everywhere: Mapping[str, float | str | None],
    single: Mapping[str, Mapping[str, float | str] | None],
) -> dict[str, dict[str, Any]]:
    """Return {kind: {name: limit}} of weights, biases and outputs."""
    own: dict[int, dict[str, float | str | None]] = {}
    for selector, given in single.items():
        for key in given or {}:
            if key not in _LIMIT_KINDS:
                raise ConfigError(
                    f"constraint '{selector}': unknown key "
                    f"'{key}'{suggest_nearest(key, _LIMIT_KINDS)}; known: "
                    f"{', '.join(_LIMIT_KINDS)}"
                )
        for node in _select_layers(ready, selector):
            own.setdefault(id(node), {}).update(
                dict.fromkeys(_LIMIT_KINDS) if given is None else given
            )
    found: dict[str, dict[str, Any]] = {kind: {} for kind in _LIMIT_KINDS}
    for node in ready.graph.graph:
        held = _trainable_inputs(node, bridge)
        values = {**everywhere, **own.get(id(node), {})}
        for kind, value in values.items():
            if value is None or not held:
                continue
            checked = _parse_limit(kind, value)
            names = (
                [ir.output_name(node)]
                if kind == "output"
                else [n for n in held if (n in ready.plan.tensors) == (kind == "weight")]
            )
            found[kind].update(dict.fromkeys(names, checked))
    return found


def _parse_limit(kind: str, value: float | str) -> float | str:
    """Return a limit after checking it.

    A positive number, or a percentile of weights and biases.
    """
    text = str(value)
    try:
        number = float(text.removeprefix("p"))
    except ValueError:
        number = math.nan
    percentile = text.startswith("p")
    if not (0 < number < math.inf) or (percentile and (number > 100 or kind == "output")):
        allowed = (
            "a positive number"
            if kind == "output"
            else "a positive number or a percentile such as p99.9"
        )
        raise ConfigError(f"limit {value} of {kind}: it is {allowed}")
    return text if percentile else number


# ---- batch normalisation -----------------------------------------------------------------------------------------


def reestimate_batch_norm(model: ir.Model, data: Data) -> None:
    """Set the running mean and variance of every BatchNormalization to those of its input over `data`, in place."""
    nodes = [
        node for node in model.graph if node.op_type == "BatchNormalization" and not node.domain
    ]
    nodes = [node for node in nodes if all(ir.const_value(v) is not None for v in node.inputs[1:5])]
    if not nodes:
        raise ConfigError(
            "batch_norm reestimate: the model has no BatchNormalization with constant statistics; "
            "it was exported folded"
        )
    for node in nodes:  # one after another: each sees what the ones before it give now
        name, count, total, squares = ir.input_name(node), 0, 0.0, 0.0
        runner = FloatRunner(model, [name])
        for feeds, _ in data.batches(64):
            ((_, array, _),) = runner.run(feeds)
            axes = tuple(i for i in range(array.ndim) if i != 1)
            wide = array.astype(np.float64)
            count += array.size // array.shape[1]
            total, squares = total + wide.sum(axis=axes), squares + (wide**2).sum(axis=axes)
        mean = total / count
        for index, value in ((3, mean), (4, np.maximum(squares / count - mean**2, 0.0))):
            ir.set_constant_input(model, node, index, np.asarray(value, np.float32), "reestimated")
