"""Fine-tuning of a `QatModule` towards the outputs of the float model, or towards labels.

Block by block (`reconstruct_blocks`): each block between two tensors that alone connect the graph
is trained separately to compute what the float model computes there, from the integers that really
reach it (BRECQ, Li et al. 2021). A few samples suffice, since each element of each feature map is a
target. End to end (`train_end_to_end`): all weights, biases and optionally scales are trained
together; the loss is the distance from the float model's outputs and block ends, or a loss with
labels. For an output of a Softmax or Sigmoid the distance is that of its input, since the gradient
of confident outputs vanishes.

This module owns the loops, the optimized parameters and the checkpoints. It does not know operators
or how integers are computed (`QatModule`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...common.errors import ConfigError, wrap_user_errors
from ...ir import ir
from ...quantization.prepare.float_outputs import map_outputs_to_logits
from ...runtime.data import Progress
from ..checkpoint.file import Checkpoint
from ..dynamo import import_dynamo
from ..qat.qat_module import FakeQuantStep, QatModule
from .learned_scales import LearnedScales
from .recipe import Constraints, Epoch, EpochReport, Recipe
from .samples import Samples, Teacher
from .soft_rounding import SoftRounding

__all__ = ["Tuner"]

#: Batch size of computations without gradients.
_BATCH_SIZE = 64


class Tuner:
    """Trains a `QatModule` in place.

    Parameters
    ----------
    module
        The module to train.
    model
        The float graph that computes the targets; the initial weights of `module` may differ.
    samples
        Training data.
    recipe
        Procedure of the training.
    constraints
        Limits of parameters and outputs, and parameters that are not trained.
    evaluate
        Returns a number for the current `module`; larger is better. By default it is the negative
        loss on the samples. After end-to-end training the best epoch is restored, or the initial
        state if no epoch is better.
    checkpoint
        File for the state after each block and epoch.
    resume
        Whether to continue from the checkpoint.
    progress
        Called with label, completed and total steps.
    on_epoch
        Called with an `EpochReport` after each epoch and block.

    Attributes
    ----------
    notes
        Remarks for the user: that the training was interrupted, or that no epoch was better than
        the initial state.
    """

    def __init__(
        self,
        module: QatModule,
        model: ir.Model,
        samples: Samples,
        recipe: Recipe,
        constraints: Constraints | None = None,
        *,
        evaluate: Callable[[], float] | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        on_epoch: Callable[[EpochReport], None] | None = None,
        metric_name: str = "",
    ) -> None:
        """Prepare training of `module`; the module moves to the device of the recipe.

        Freezes and clamps parameters by `constraints`, and loads the state of the file `checkpoint`
        if `resume` and it exists. `model` is the float graph whose tensors are the targets.
        `evaluate` returns the metric of the current module, larger is better; without it the loss
        decides. `metric_name` is for reports.
        """
        self.module, self.samples, self.recipe = module.to(recipe.device), samples, recipe
        self._model = model
        self._loss_tensors = _get_loss_tensors(module, model) if recipe.loss == "distill" else []
        self.constraints = constraints or Constraints()
        self.history: list[Epoch] = []
        self._evaluate, self._progress = evaluate, progress
        self._on_epoch, self._metric_name = on_epoch, metric_name
        self.notes: list[str] = []
        self._scales = _make_learned_scales(module, recipe)
        self._scale_lr = _get_scale_lr(module, recipe)
        self._file = Checkpoint(checkpoint) if checkpoint is not None else None
        self._saved = self._file.read() if self._file is not None and resume else {}
        module.output_clip_limits = self.constraints.outputs
        self._limits = {
            name: _resolve_limit(module.parameter_of[name], limit)
            for name, limit in self.constraints.weights.items()
        }
        for name in self.constraints.frozen:
            module.parameter_of[name].requires_grad_(False)
        if self._saved:
            self._load_state(self._saved)
        self._clamp_parameters()

    def run(self) -> list[Epoch]:
        """Train by the recipe, first blocks, then end to end, and return the history.

        The trained parameters are in the module, which is set to evaluation.
        """
        if self.recipe.method in ("blocks", "both"):
            self.reconstruct_blocks()
        if self.recipe.method in ("whole", "both"):
            self.train_end_to_end()
        self.module.eval()
        return self.history

    # ---- block by block -------------------------------------------------------------------------

    def reconstruct_blocks(self) -> None:
        """Train each block towards the tensor of the float model at its end.

        Blocks that the checkpoint contains are left out; it is saved after each block. An
        interruption undoes the block that is being trained, and leaves out those after it.
        """
        ends = self._find_block_ends()
        for number, (start, end) in enumerate(zip([None, *ends], ends, strict=False), 1):
            if number <= self._saved.get("blocks", 0):
                continue
            state = self._get_state()
            try:
                loss = self._train_block(start, end, number)
            except KeyboardInterrupt:
                self.module.log2_scales = {}
                self._load_state({"state": state})
                self.notes.append(
                    f"interrupted in block {number} of {len(ends)}; the blocks before it are kept"
                )
                return
            if loss is not None:
                self.history.append(Epoch(f"block to {end}", number, loss))
                self._report_epoch(len(ends), self.recipe.lr, is_best=False)
            self._save_checkpoint(blocks=number)
            self._report_progress("blocks", number, len(ends))

    def _find_block_ends(self) -> list[str]:
        """Return the tensors where blocks end, by their names in the plan.

        Each block has parameters to train, and data movement at its end belongs to it.
        """
        network = self.module.network
        plan_tensors = {str(name) for name in self.module.plan.tensors}
        cuts = dict(network.single_tensor_cuts)
        ends: list[str] = []
        has_parameters = False
        for index, step in enumerate(network.steps):
            sources = self._get_sources([step])
            has_parameters = has_parameters or not sources.isdisjoint(self.module.parameter_of)
            end = network.get_plan_name(cuts.get(index, ""))
            if not has_parameters or end not in plan_tensors or end in ends:
                continue
            next_step = network.steps[index + 1] if index + 1 < len(network.steps) else None
            if next_step is None or not next_step.is_data_movement:
                ends.append(end)
                has_parameters = False
        return ends

    def _get_sources(self, steps: Sequence[FakeQuantStep]) -> set[str]:
        """Return the float initializers, and the names of other tensors, that `steps` read."""
        sources = set()
        for step in steps:
            for name in (*step.parameter_sources.values(), *step.inputs):
                sources.add(self.module.get_source_name(name))
        return sources

    def _locate_cut(self, name: str | None) -> tuple[int, str]:
        """Return the index of the first step after a block end, and the integer tensor there.

        `name` is the tensor in the plan, or None for the start of the graph, which gives (0, "").
        ValueError if no block ends at `name`.
        """
        if name is None:
            return 0, ""
        network = self.module.network
        for index, tensor in network.single_tensor_cuts:
            if network.get_plan_name(tensor) == name:
                return index + 1, tensor
        raise ValueError(f"no block ends at {name}")

    def _train_block(self, start: str | None, end: str, number: int) -> float | None:
        """Train the steps between two block ends on the targets of the float model.

        `start` None is the beginning; `number` is for progress and the order of samples. Returns
        the mean loss of the last epoch (NaN without any), or None if there is nothing to train.
        """
        recipe, module = self.recipe, self.module
        step_range = slice(self._locate_cut(start)[0], self._locate_cut(end)[0])
        steps = module.network.steps[step_range]
        sources = self._get_sources(steps)
        names = [
            name
            for name in module.parameter_of
            if name in sources and name not in self.constraints.frozen
        ]
        soft = SoftRounding(module, names) if recipe.rounding == "soft" else None
        plan_tensors = {step.plan_tensor for step in steps} | set(names)
        log2_scales = self._get_block_scales(plan_tensors, start)
        if not (names or log2_scales):
            return None
        inputs = self._collect_block_inputs(start)
        targets = Teacher(self._model, [end], self.samples).all([end])[end]
        if soft is not None:
            groups = soft.get_parameter_groups(recipe.lr)
        else:
            groups = self._get_parameter_groups(names, recipe.lr)
        total_steps = recipe.block_epochs * max(len(self.samples) // recipe.batch_size, 1)
        scale_parameters = list({id(log): log for log in log2_scales.values()}.values())
        optimizer, schedule = self._make_optimizer(groups, scale_parameters, total_steps)
        variance = targets.float().var().clamp(min=1e-12)
        module.log2_scales = log2_scales
        completed_steps, mean_loss = 0, math.nan
        for epoch in range(recipe.block_epochs):
            losses = []
            order = 10_000 * number + epoch
            for index in self.samples.iterate_shuffled(recipe.batch_size, recipe.seed, order):
                actual = self._run_block(inputs, step_range, end, index)
                loss = ((actual - targets[index]) ** 2).mean() / variance
                if soft is not None:
                    loss = loss + soft.compute_penalty(completed_steps / total_steps)
                self._apply_step(loss, optimizer, schedule, f"block {number}, epoch {epoch + 1}")
                losses.append(float(loss.detach()))
                completed_steps += 1
            mean_loss = float(np.mean(losses)) if losses else math.nan
        if soft is not None:
            soft.finalize()
        module.log2_scales = {}
        return mean_loss

    def _run_block(
        self, inputs: tuple[str, Any] | None, step_range: slice, end: str, index: Any
    ) -> Any:
        """Return the real values of the tensor at the end of a block for some samples.

        Parameters
        ----------
        inputs
            Name and values of the block's input for all samples; None for the graph inputs.
        step_range, end
            Steps of the block, and the plan's name of the tensor at its end.
        index
            Indices of the samples.
        """
        if inputs is None:
            feed = self.samples.get_inputs(index)
        else:
            name, counts = inputs
            feed = {name: counts[index].float()}
        tensor = self._locate_cut(end)[1]
        counts = dict(self.module.integers(feed, step_range))[tensor]
        qparams = self.module.network.held.get(tensor)
        return counts if qparams is None else (counts - qparams.zero_point) / qparams.scale

    def _get_block_scales(self, names: Collection[str], start: str | None) -> dict[str, Any]:
        """Return {tensor: log2 scale to learn} for the tensors among `names`.

        Scales that are also that of `start`, the block's input, are left out. Empty if scales are
        fixed.
        """
        if self._scales is None:
            return {}
        input_scale = None if start is None else self._scales.log2_scales.get(start)
        return {
            name: log2_scale
            for name, log2_scale in self._scales.log2_scales.items()
            if name in names and log2_scale is not input_scale
        }

    def _collect_block_inputs(self, start: str | None) -> tuple[str, Any] | None:
        """Compute the input of a block, which starts at the tensor `start`, for all samples.

        Returns (name of the integer tensor, its values, int16 if integer), or None if the block
        starts at the graph inputs.
        """
        if start is None:
            return None
        step_count, tensor = self._locate_cut(start)
        is_integer = tensor in self.module.network.held
        batches = []
        for index in self.samples.iterate_slices(_BATCH_SIZE):
            with torch.no_grad():
                values = self.module.integers(self.samples.get_inputs(index), slice(0, step_count))
                for name, value in values:
                    if name == tensor:
                        batches.append(value.to(torch.int16) if is_integer else value)
        return tensor, torch.cat(batches)

    # ---- end to end -----------------------------------------------------------------------------

    def train_end_to_end(self) -> None:
        """Train all parameters that are not frozen together, and restore the best epoch.

        The state before the first epoch counts as a candidate too. Learned scales are trained
        along. Continues a loaded checkpoint, saves one after each epoch, and stops early after
        `patience` epochs without a better one, or when it is interrupted.
        """
        recipe, module = self.recipe, self.module
        names = [name for name in module.parameter_of if name not in self.constraints.frozen]
        taps = self._get_taps()
        target_names = [*module.network.outputs, *self._loss_tensors, *taps]
        teacher = Teacher(self._model, target_names, self.samples)
        step_count = max(len(self.samples) // recipe.batch_size, 1)
        scales = self._scales.parameters if self._scales is not None else []
        groups = self._get_parameter_groups(names, recipe.lr)
        optimizer, schedule = self._make_optimizer(groups, scales, recipe.epochs * step_count)
        module.log2_scales = self._scales.log2_scales if self._scales is not None else {}
        first_epoch = self._saved.get("epochs", 0)
        if first_epoch:
            optimizer.load_state_dict(self._saved["optimizer"])
            schedule.load_state_dict(self._saved["schedule"])
        best, stale_epochs = self._saved.get("best"), self._saved.get("since", 0)
        best_epoch = self._saved.get("best_epoch", int("best" in self._saved))
        if best is None:
            best = self._evaluate_module(teacher, taps), self._get_state()
        start = time.monotonic()
        for epoch in range(first_epoch, recipe.epochs):
            try:
                loss = self._train_epoch(teacher, taps, optimizer, schedule, epoch)
                value = self._evaluate_module(teacher, taps)
            except KeyboardInterrupt:
                self.notes.append(
                    f"interrupted in epoch {epoch + 1} of {recipe.epochs}; the best state is kept"
                )
                break
            metric = value if self._evaluate is not None else None
            self.history.append(Epoch("whole", epoch + 1, loss, metric))
            if value > best[0]:
                best, stale_epochs, best_epoch = (value, self._get_state()), 0, epoch + 1
            else:
                stale_epochs += 1
            seconds = (time.monotonic() - start) / (epoch + 1 - first_epoch)
            self._report_epoch(
                recipe.epochs,
                optimizer.param_groups[0]["lr"],
                is_best=not stale_epochs,
                seconds_left=seconds * (recipe.epochs - epoch - 1),
            )
            self._save_checkpoint(
                epochs=epoch + 1,
                optimizer=optimizer.state_dict(),
                schedule=schedule.state_dict(),
                best=best,
                best_epoch=best_epoch,
                since=stale_epochs,
            )
            if recipe.patience is not None and stale_epochs >= recipe.patience:
                break
        module.log2_scales = {}
        self._load_state({"state": best[1]})
        if not best_epoch and self.history:
            self.notes.append("no epoch is better than the start, which was kept")

    def _get_taps(self) -> list[str]:
        """Return the block ends whose distance from the float model is part of the loss.

        Outputs are left out. Empty unless the loss is "distill" and the weight of features is
        positive.
        """
        if self.recipe.loss != "distill" or not self.recipe.features > 0:
            return []
        excluded = (*self.module.network.outputs, *self._loss_tensors)
        return [name for name in self._find_block_ends() if name not in excluded]

    def _train_epoch(
        self, teacher: Teacher, taps: Sequence[str], optimizer: Any, schedule: Any, epoch: int
    ) -> float:
        """Train on all samples once, shuffled, and return the mean loss of the batches.

        `taps` are tensors whose distance is part of the loss; `epoch` counts from 0.
        """
        recipe, module = self.recipe, self.module
        step_count = max(len(self.samples) // recipe.batch_size, 1)
        module.train()
        losses = []
        batches = self.samples.iterate_shuffled(recipe.batch_size, recipe.seed, epoch)
        for step, index in enumerate(batches, 1):
            outputs = module(self.samples.get_inputs(index), [*self._loss_tensors, *taps])
            targets = teacher.compute_targets(index)
            loss = self._compute_loss(outputs, targets, self.samples.get_labels(index), taps)
            self._apply_step(loss, optimizer, schedule, f"epoch {epoch + 1}, step {step}")
            losses.append(float(loss.detach()))
            completed = epoch * step_count + step
            self._report_progress("training", completed, recipe.epochs * step_count)
        module.eval()
        return float(np.mean(losses))

    def _evaluate_module(self, teacher: Teacher, taps: Sequence[str]) -> float:
        """Return a measure of the current module; larger is better.

        It is the result of the user's function, or without one the negative mean loss on all
        samples, against the outputs of `teacher` (the float model). `taps` are tensors whose
        distance is part of the loss.
        """
        if self._evaluate is not None:
            return self._evaluate()
        losses = []
        with torch.no_grad():
            for index in self.samples.iterate_slices(_BATCH_SIZE):
                outputs = self.module(self.samples.get_inputs(index), [*self._loss_tensors, *taps])
                targets = teacher.compute_targets(index)
                loss = self._compute_loss(outputs, targets, self.samples.get_labels(index), taps)
                losses.append(float(loss) * len(next(iter(outputs.values()))))
        return -sum(losses) / len(self.samples)

    def _compute_loss(
        self,
        outputs: Mapping[str, Any],
        targets: Mapping[str, Any],
        labels: Any,
        taps: Sequence[str],
    ) -> Any:
        """Compute the loss of a batch as a scalar tensor.

        Parameters
        ----------
        outputs, targets
            Tensors of the module and of the float model by name.
        labels
            Labels of the samples, or None.
        taps
            Block ends whose distance is part of the loss "distill".

        Raises
        ------
        ConfigError
            The loss is "labels" and there are none.
        """
        recipe = self.recipe
        if callable(recipe.loss):
            with wrap_user_errors("the loss function failed", ConfigError):
                return recipe.loss(outputs, targets, labels)
        if recipe.loss == "labels":
            if labels is None:
                raise ConfigError(
                    "loss 'labels': the training data have no labels; add labels or use distill"
                )
            scores = outputs[self.module.network.outputs[0]]
            return torch.nn.functional.cross_entropy(
                scores.reshape(len(scores), -1), labels.long().reshape(-1)
            )
        loss = _mean_normalized_mse(outputs, targets, self._loss_tensors)
        if taps:
            loss = loss + recipe.features * sum(
                _normalized_mse(outputs[name], targets[name]) for name in taps
            ) / len(taps)
        return loss

    # ---- optimizer steps ------------------------------------------------------------------------

    def _get_parameter_groups(self, names: Sequence[str], lr: float) -> list[dict[str, Any]]:
        """Return Adam's groups with a step size relative to the parameter's root mean square.

        The step size is `lr` times that, or `lr` for a parameter of zeros.
        """
        groups = []
        for name in names:
            parameter = self.module.parameter_of[name]
            rms = float(parameter.detach().double().square().mean().sqrt())
            groups.append({"params": [parameter], "lr": lr * (rms or 1.0)})
        return groups

    def _make_optimizer(
        self, groups: Sequence[dict[str, Any]], scales: Sequence[Any], total_steps: int
    ) -> tuple[Any, Any]:
        """Return Adam for parameter groups and scales, and its cosine schedule over `total_steps`.

        Scales have a step size of their own.
        """
        all_groups = list(groups)
        if len(scales):
            all_groups.append({"params": list(scales), "lr": self._scale_lr})
        import_dynamo()
        optimizer = torch.optim.Adam(all_groups)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(total_steps, 1))
        return optimizer, schedule

    def _apply_step(self, loss: Any, optimizer: Any, schedule: Any, location: str) -> None:
        """Make a step of optimizer and schedule, clamp the parameters, and update learned scales.

        The plan of the module follows learned scales. Raises ConfigError, mentioning `location`, if
        the loss is not finite.
        """
        if not math.isfinite(float(loss.detach())):
            hint = f"; the last good state is in {self._file.path}" if self._file else ""
            raise ConfigError(
                f"the loss became {float(loss.detach())} in {location}; lower --lr (now "
                f"{self.recipe.lr:g}){hint}"
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        self._clamp_parameters()
        if self._scales is not None:
            self.module.set_plan(self._scales.plan())

    def _clamp_parameters(self) -> None:
        """Clamp the parameters that have a limit to [-limit, limit], in place."""
        with torch.no_grad():
            for name, limit in self._limits.items():
                self.module.parameter_of[name].clamp_(-limit, limit)

    # ---- state ----------------------------------------------------------------------------------

    def _get_state(self) -> dict[str, Any]:
        """Return copies of all parameters ("parameter NAME") and learned scales ("scale INDEX")."""
        state = {}
        for name, parameter in self.module.parameter_of.items():
            state[f"parameter {name}"] = parameter.detach().clone()
        if self._scales is not None:
            for index, parameter in enumerate(self._scales.parameters):
                state[f"scale {index}"] = parameter.detach().clone()
        return state

    def _load_state(self, saved: Mapping[str, Any]) -> None:
        """Set parameters and scales to those in `saved["state"]`, and the history if saved.

        The state has entries "parameter <name>" and "scale <index>". The plan of the module follows
        learned scales.
        """
        state = saved["state"]
        with torch.no_grad():
            for name, parameter in self.module.parameter_of.items():
                parameter.copy_(state[f"parameter {name}"])
            if self._scales is not None:
                for index, parameter in enumerate(self._scales.parameters):
                    parameter.copy_(state[f"scale {index}"])
                self.module.set_plan(self._scales.plan())
        self.history = [Epoch(*entry) for entry in saved.get("history", [])] or self.history

    def _save_checkpoint(self, **entries: Any) -> None:
        """Update entries of the saved state; with a checkpoint file, write it.

        The file also has the parameters, scales and history of now.
        """
        self._saved = {**self._saved, **entries}
        if self._file is not None:
            history = [
                (entry.part, entry.number, entry.loss, entry.metric) for entry in self.history
            ]
            self._file.write({**self._saved, "state": self._get_state(), "history": history})

    def _report_epoch(
        self, count: int, learning_rate: float, *, is_best: bool, seconds_left: float | None = None
    ) -> None:
        """Report the last entry of the history, one of `count` epochs or blocks, to the user."""
        if self._on_epoch is not None:
            report = EpochReport(
                self.history[-1], count, learning_rate, is_best, seconds_left, self._metric_name
            )
            self._on_epoch(report)

    def _report_progress(self, label: str, completed: int, total: int) -> None:
        """Call the progress callback with `completed` of `total` steps, if there is one."""
        if self._progress is not None:
            self._progress(label, completed, total)


def _make_learned_scales(module: QatModule, recipe: Recipe) -> LearnedScales | None:
    """Return the scales of the module's plan as parameters, or None if they are fixed.

    The recipe decides; if it does not say, scales are learned in mode q-value (powers of two).
    """
    is_learned = recipe.scales == "learned"
    if recipe.scales is None:
        is_learned = module.plan.mode == "q-value"
    return LearnedScales(module.partition, module.plan, module.target) if is_learned else None


def _get_scale_lr(module: QatModule, recipe: Recipe) -> float:
    """Return the step size of learned scales: that of the recipe, else 1e-2 or 1e-4.

    1e-2 is for mode q-value, in which scales are powers of two.
    """
    if recipe.scale_lr is not None:
        return recipe.scale_lr
    return 1e-2 if module.plan.mode == "q-value" else 1e-4


def _get_loss_tensors(module: QatModule, model: ir.Model) -> list[str]:
    """Return the tensors that the loss "distill" compares, one per output, in order.

    For an output of a Softmax or Sigmoid, that is its input if the plan has it; else the output.
    """
    network, logits = module.network, map_outputs_to_logits(model)
    plan_names: set[str] = set()
    for step in network.steps:
        plan_names.update(network.get_plan_name(name) for name in step.outputs)
    return [
        logits[name] if logits.get(name, "") in plan_names else name for name in network.outputs
    ]


def _mean_normalized_mse(
    outputs: Mapping[str, Any], targets: Mapping[str, Any], names: Sequence[str]
) -> Any:
    """Return the mean over the tensors `names` of squared error divided by target variance."""
    return sum(_normalized_mse(outputs[name], targets[name]) for name in names) / len(names)


def _normalized_mse(actual: Any, target: Any) -> Any:
    """Return the mean squared error of `actual` divided by the variance of `target`.

    The variance counts as at least 1e-12.
    """
    target = target.float()
    return ((actual - target) ** 2).mean() / target.var().clamp(min=1e-12)


def _resolve_limit(parameter: Any, limit: float | str) -> float:
    """Return a limit as a number; "p99.9" is that percentile of the parameter's magnitudes."""
    if not isinstance(limit, str):
        return float(limit)
    magnitudes = np.abs(parameter.detach().cpu().numpy())
    return float(np.percentile(magnitudes, float(limit.removeprefix("p"))))
