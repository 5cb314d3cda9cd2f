"""Fine-tuning: the quantization flow with training instead of refinement.

    prepare (plan) -> `QatModule` -> train -> weights and scales back into graph and plan -> lower

The training itself is in `lingeronnx.torch`, which is imported on demand. This module interprets
the user's options, resolves selectors to nodes, and re-estimates batch normalization; it must not
import torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import ConfigError, suggest_nearest
from ..interchange.qdq.encodings import Encodings
from ..ir import ir
from ..quantization import (
    PlannedModel,
    QuantizedModel,
    RefinementOptions,
    build_quantized_model,
    measure_accuracy,
    plan_model,
    prepare_model,
    refine_weights,
)
from ..quantization.lower import lower
from ..runtime.data import Data, Progress, load_function
from ..runtime.evaluation import evaluate
from ..runtime.metrics import LOWER_IS_BETTER
from ..runtime.runners import FloatRunner, get_input_specs
from ..runtime.session import LoweredSession

if TYPE_CHECKING:
    from ..torch.finetune import EpochReport, Recipe
    from ..torch.qat.qat_module import QatModule

__all__ = ["finetune"]

#: The kinds of values that a constraint can limit.
_LIMIT_KINDS = ("weight", "bias", "output")


def finetune(
    model: ir.ModelLike,
    train: object,
    eval_data: object = None,
    *,
    metric: str | None = None,
    loss: str | Callable[..., object] = "distill",
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
    on_epoch: Callable[[EpochReport], None] | None = None,
    **settings: Any,
) -> QuantizedModel:
    """Quantize a model and fine-tune it with the integer arithmetic of the chip.

    Parameters
    ----------
    model
        A path, or a float model in memory, which is not modified.
    train
        Training data, in any form that `quantize` takes as calibration data. Labels are needed for
        the loss "labels" only.
    eval_data, metric
        The best epoch, or the initial state if no epoch is better, is chosen by `metric` on
        `eval_data` as in `evaluate`; without `eval_data` by the loss on the training samples.
    loss
        "distill" (distance from the outputs of the float model), "labels", or a function or
        ``file.py:function`` of (outputs, targets, labels), dicts of tensors by name, that returns a
        scalar tensor.
    clamp_weight, clamp_bias, clamp_output
        Largest absolute value in all layers. "p99.9" is that percentile of the values of a
        parameter. Outputs are clamped during training only.
    constraints
        Selector -> {"weight", "bias", "output": value}, limits of single layers; None for layers
        without limits.
    freeze
        Selectors of layers that are not trained.
    batch_norm
        "frozen", or "reestimate" to recompute its statistics on `train` before it is folded.
    checkpoint, resume
        File for the state of the training, and whether to continue from it.
    state_dict
        Checkpoint of the user's torch model, loaded into the graph first.
    on_epoch
        Called after each epoch and block with its loss, metric, learning rate and the time left;
        as text that is one line, so that it can be `print`. An interruption (Ctrl-C) ends the
        training, and the best state is returned.
    settings
        Settings of `quantize`, and fields of `lingeronnx.torch.finetune.Recipe`.

    Raises
    ------
    ConfigError
        If a setting is invalid, PyTorch is not installed, or the loss becomes NaN or infinite.
    """
    from ..torch.finetune import Constraints, Tuner
    from ..torch.finetune.samples import Samples
    from ..torch.qat.qat_module import QatModule

    if train is None:
        raise ConfigError("fine-tuning needs training data; pass --train DATA")
    recipe = _make_recipe(loss, settings)
    if batch_norm not in ("frozen", "reestimate"):
        raise ConfigError(f"batch_norm '{batch_norm}'; it must be frozen or reestimate")
    source = ir.as_owned_model(model)
    if state_dict is not None:
        from ..torch.checkpoint.parameters import load_checkpoint

        load_checkpoint(source, state_dict)
    if batch_norm == "reestimate":
        limit = settings.get("limit")
        data = Data(train, get_input_specs(source), limit=limit, label="training data")
        reestimate_batch_norm(source, data)
    plan = settings.pop("plan", None)
    encodings, explicit_plan = (plan, None) if isinstance(plan, Encodings) else (None, plan)
    config = settings.pop("config", None)
    prepared = prepare_model(source, train, config, settings, hold_out=False, encodings=encodings)
    if isinstance(model, str | os.PathLike):
        prepared = replace(prepared, stem=Path(model).stem + "_quant")
    planned = plan_model(prepared, explicit_plan, progress)
    methods = RefinementOptions.all() if prepared.recipe.tries_methods else RefinementOptions()
    # Soft rounding learns the rounding of each weight; other training starts from refined weights.
    start = planned.graph if recipe.rounding == "soft" else refine_weights(planned, methods)
    qat_module = QatModule(start, planned.plan, prepared.target, prepared.data.first())
    global_limits = {"weight": clamp_weight, "bias": clamp_bias, "output": clamp_output}
    limits = _resolve_limits(planned, qat_module, global_limits, constraints or {})
    frozen = frozenset(_select_parameters(planned, qat_module, freeze))

    def measure() -> float:
        """Return the metric of the current integer graph on `eval_data`; larger is better.

        The trained weights and scales are lowered for that. A metric of which less is better is
        negated.
        """
        tuned_graph = replace_initializers(start, qat_module.get_weights())
        partition = qat_module.partition.with_graph(tuned_graph)
        lowered = lower(partition, qat_module.plan, prepared.target)
        session = LoweredSession(lowered.graph, prepared.target)
        result = evaluate(session, eval_data, metric=metric, baseline=source, progress=None)
        return -result.value if result.metric in LOWER_IS_BETTER else result.value

    tuner = Tuner(
        qat_module,
        planned.graph,
        Samples(prepared.data, recipe.device),
        recipe,
        Constraints(limits["weight"] | limits["bias"], limits["output"], frozen),
        evaluate=None if eval_data is None else measure,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        resume=resume,
        progress=progress,
        on_epoch=on_epoch,
        metric_name="" if eval_data is None else metric or "metric",
    )
    history = tuner.run()
    notes = [*planned.notes, *_format_untrained_note(qat_module), *tuner.notes]
    tuned = replace(planned, plan=qat_module.plan, notes=notes)
    tuned_graph = replace_initializers(start, qat_module.get_weights())
    result = build_quantized_model(tuned, tuned_graph, progress)
    training = [vars(entry) for entry in history]
    result = result.with_report(replace(result.report, training=training))
    if eval_data is None:
        return result
    return measure_accuracy(
        result, eval_data, model, budget=prepared.conf.budget, metric=metric, progress=progress
    )


def _make_recipe(loss: str | Callable[..., object], settings: dict[str, Any]) -> Recipe:
    """Create the training recipe from a loss and the fields of `Recipe` in `settings`.

    The fields are removed from `settings` in place, except for the seed, which `quantize` uses too.
    A loss other than "distill" and "labels" that is a text is loaded as a function.
    """
    from ..torch.finetune import Recipe

    names = [name for name in settings if name in Recipe.__dataclass_fields__ and name != "seed"]
    fields = {name: settings.pop(name) for name in names}
    if isinstance(loss, str) and loss not in ("distill", "labels"):
        loss = load_function(loss, "loss")
    return Recipe(loss=loss, seed=settings.get("seed") or 0, **fields)


def _format_untrained_note(qat_module: QatModule) -> list[str]:
    """Return one note that names up to five initializers that cannot be trained; [] without any."""
    names = qat_module.untrainable_initializers
    if not names:
        return []
    others = f" and {len(names) - 5} more" if len(names) > 5 else ""
    reason = "integer layers store them in another form"
    return [f"not trained, since {reason}: {', '.join(names[:5])}{others}"]


def replace_initializers(graph: ir.Model, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of `graph` in which the initializers named in `weights` have these arrays."""
    copy = graph.clone()
    for name, array in weights.items():
        copy.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return copy


# ---- selected layers ----------------------------------------------------------------------------


def _select_layers(planned: PlannedModel, selector: str) -> list[ir.Node]:
    """Return the nodes of the planned graph that `selector`, for the user's graph, refers to.

    Raises ConfigError if there are none because they are folded into other layers.
    """
    nodes = planned.selectors(planned.graph).resolve_nodes(selector)
    if not nodes:
        raise ConfigError(
            f"selector '{selector}': its nodes are folded into adjacent layers; name the layer "
            "before"
        )
    return nodes


def _trainable_inputs(node: ir.Node, qat_module: QatModule) -> list[str]:
    """Return the names of the inputs of `node` that are trainable parameters, in input order.

    These are its weights and biases that the module trains.
    """
    return [
        str(value.name)
        for value in node.inputs
        if value is not None and value.name in qat_module.parameter_of
    ]


def _select_parameters(
    planned: PlannedModel, qat_module: QatModule, selectors: Iterable[str]
) -> list[str]:
    """Return the names of the trainable parameters of the layers that `selectors` match, in order.

    A parameter may come several times.
    """
    names = []
    for selector in selectors:
        for node in _select_layers(planned, selector):
            names += _trainable_inputs(node, qat_module)
    return names


def _resolve_limits(
    planned: PlannedModel,
    qat_module: QatModule,
    global_limits: Mapping[str, float | str | None],
    constraints: Mapping[str, Mapping[str, float | str] | None],
) -> dict[str, dict[str, Any]]:
    """Return "weight", "bias" and "output" -> {tensor name: limit} of layers with parameters.

    `global_limits` are those of all layers by kind, None for no limit; `constraints` map a selector
    of layers to limits of its own, which take precedence.
    """
    layer_limits = _resolve_constraints(planned, constraints)
    limits: dict[str, dict[str, Any]] = {kind: {} for kind in _LIMIT_KINDS}
    for node in planned.graph.graph:
        parameters = _trainable_inputs(node, qat_module)
        if not parameters:
            continue
        node_limits = {**global_limits, **layer_limits.get(id(node), {})}
        weights = [name for name in parameters if name in planned.plan.tensors]
        names_by_kind = {
            "weight": weights,
            "bias": [name for name in parameters if name not in weights],
            "output": [ir.output_name(node)],
        }
        for kind, value in node_limits.items():
            if value is not None:
                limit = _parse_limit(kind, value)
                limits[kind].update(dict.fromkeys(names_by_kind[kind], limit))
    return limits


def _resolve_constraints(
    planned: PlannedModel, constraints: Mapping[str, Mapping[str, float | str] | None]
) -> dict[int, dict[str, float | str | None]]:
    """Return the limits of selected layers: id of the node -> kind of limit -> limit.

    A constraint None removes all limits of its layers (None each); later constraints override
    earlier ones of the same kind. ConfigError for an unknown kind, or a selector without layers.
    """
    layer_limits: dict[int, dict[str, float | str | None]] = {}
    for selector, constraint in constraints.items():
        for key in constraint or {}:
            if key not in _LIMIT_KINDS:
                raise ConfigError(
                    f"constraint '{selector}': unknown key "
                    f"'{key}'{suggest_nearest(key, _LIMIT_KINDS)}; known: "
                    f"{', '.join(_LIMIT_KINDS)}"
                )
        for node in _select_layers(planned, selector):
            node_limits = dict.fromkeys(_LIMIT_KINDS) if constraint is None else constraint
            layer_limits.setdefault(id(node), {}).update(node_limits)
    return layer_limits


def _parse_limit(kind: str, value: float | str) -> float | str:
    """Parse the limit of a "weight", "bias" or "output" (`kind`): a positive number.

    Weights and biases may also have a percentile. Returns a number, or the percentile as text, such
    as "p99.9" (above 0, at most 100). Raises ConfigError for other values.
    """
    text = str(value)
    is_percentile = text.startswith("p")
    try:
        number = float(text.removeprefix("p"))
    except ValueError:
        number = math.nan
    if is_percentile:
        is_valid = kind != "output" and 0 < number <= 100
    else:
        is_valid = 0 < number < math.inf
    if not is_valid:
        allowed = "a positive number"
        if kind != "output":
            allowed += " or a percentile such as p99.9"
        raise ConfigError(f"limit {value} of {kind}: it must be {allowed}")
    return text if is_percentile else number


# ---- batch normalization ------------------------------------------------------------------------


def reestimate_batch_norm(model: ir.Model, data: Data) -> None:
    """Recompute the running mean and variance of each BatchNormalization on `data`, in place.

    Raises
    ------
    ConfigError
        If the model has no BatchNormalization with constant statistics.
    """
    nodes = []
    for node in model.graph:
        is_batch_norm = node.op_type == "BatchNormalization" and not node.domain
        if is_batch_norm and all(ir.const_value(v) is not None for v in node.inputs[1:5]):
            nodes.append(node)
    if not nodes:
        raise ConfigError(
            "batch_norm reestimate: the model has no BatchNormalization with constant statistics; "
            "it was folded by the export"
        )
    for node in nodes:  # in graph order: each layer sees the updated layers upstream
        mean, variance = _channel_moments(model, ir.input_name(node), data)
        for index, statistic in ((3, mean), (4, variance)):
            value = np.asarray(statistic, np.float32)
            ir.set_constant_input(model, node, index, value, "reestimated")


def _channel_moments(model: ir.Model, name: str, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of a tensor of a float model over `data`, float64 [channels].

    Axis 1 of the tensor is the channel. The variance is that of the population (divided by the
    count).
    """
    count, total, squares = 0, np.zeros(()), np.zeros(())
    runner = FloatRunner(model, [name])
    for feeds, _ in data.batches(64):
        ((_, array, _),) = runner.run(feeds)
        axes = tuple(axis for axis in range(array.ndim) if axis != 1)
        values = array.astype(np.float64)
        count += array.size // array.shape[1]
        total = total + values.sum(axis=axes)
        squares = squares + (values**2).sum(axis=axes)
    mean = total / count
    return mean, np.maximum(squares / count - mean**2, 0.0)
