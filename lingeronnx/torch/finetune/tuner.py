"""Fine-tuning a bridge: block by block first, then as a whole, towards the float model's answers or labels.

Block by block (`reconstruct`): each block between two places where a single tensor passes is
trained by itself to give what the float model gives there, from the integers that really reach it
(BRECQ, Li et al. 2021). A handful of samples will do, since every position of every map is a
target. As a whole (`train`): all weights, biases and, if wanted, scales at once; the loss is the
distance to the float model's outputs and to its tensors at those places, or one with labels. Of an
output that a Softmax or a Sigmoid makes, the distance is that of what these read: behind them sure
decisions have next to no gradient.

Owns: the loops, what is optimised, checkpoints. Must not know: operators, how integers come about
(`bridge`), files of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import ConfigError
from ...flow.prepare.float_outputs import map_outputs_to_logits
from ...graph import ir
from ...run.data import Progress
from ..checkpoint.file import Checkpoint
from ..dynamo import import_dynamo
from ..qat.qat_module import QatModule
from .learned_scales import LearnedScales
from .recipe import Constraints, Epoch, Recipe
from .samples import Samples, Teacher
from .soft_rounding import SoftRounding

__all__ = ["Tuner"]

_BATCH_SIZE = 64  # for what is only computed forwards


class Tuner:
    """Trains `bridge` in place.

    model : the float graph whose values are the targets; the bridge's own may have other weights to
    begin with. evaluate : returns a number, the larger the better, for the bridge as it stands;
    without it the loss over the samples counts. Of the whole, the best epoch is kept, or the start
    where none is better. checkpoint : where the state is kept after every part and epoch.
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
    ) -> None:
        self.bridge, self.samples, self.recipe = module.to(recipe.device), samples, recipe
        self._model = model
        self._judged = _get_loss_tensors(module, model) if recipe.loss == "distill" else []
        self.constraints = constraints or Constraints()
        self.history: list[Epoch] = []
        self._evaluate, self._progress = evaluate, progress
        power = module.plan.mode == "q-value"
        learned = power if recipe.scales is None else recipe.scales == "learned"
        self._scales = (
            LearnedScales(module.partition, module.plan, module.target) if learned else None
        )
        self._scale_lr = recipe.scale_lr if recipe.scale_lr is not None else 1e-2 if power else 1e-4
        self._file = Checkpoint(checkpoint) if checkpoint is not None else None
        self._done = self._file.read() if self._file is not None and resume else {}
        module.output_clip_limits = self.constraints.outputs
        self._limits = {
            name: _resolve_limit(module.parameter_of[name], top)
            for name, top in self.constraints.weights.items()
        }
        for name in self.constraints.frozen:
            module.parameter_of[name].requires_grad_(False)
        if self._done:
            self._load_state(self._done)
        self._clamp_parameters()

    def run(self) -> list[Epoch]:
        """Train by the recipe and return the history; the bridge holds the result."""
        if self.recipe.method in ("blocks", "both"):
            self.reconstruct_blocks()
        if self.recipe.method in ("whole", "both"):
            self.train_end_to_end()
        self.bridge.eval()
        return self.history

    # ---- block by block ----------------------------------------------------------------------------------------------

    def reconstruct_blocks(self) -> None:
        """Train block after block towards the float model's tensor at its end."""
        ends = self._find_block_ends()
        for number, (start, end) in enumerate(zip([None, *ends], ends, strict=False)):
            if number < self._done.get("blocks", 0):
                continue
            loss = self._train_block(start, end, number)
            if loss is not None:
                self.history.append(Epoch(f"block to {end}", number + 1, loss))
            self._save_checkpoint(blocks=number + 1)
            self._report_progress("blocks", number + 1, len(ends))

    def _find_block_ends(self) -> list[str]:
        """Return the plan's names of the tensors where blocks end.

        Between two lie parameters to train.
        """
        network, ends, trains = self.bridge.network, [], False
        known = {str(name) for name in self.bridge.plan.tensors}
        cuts = dict(network.single_tensor_cuts)
        for index, step in enumerate(network.steps):
            held = {
                self.bridge.get_source_name(name)
                for name in (*step.parameter_sources.values(), *step.inputs)
            }
            trains = trains or any(name in self.bridge.parameter_of for name in held)
            own = network.get_plan_name(cuts.get(index, ""))
            if trains and own in known and own not in ends:
                following = network.steps[index + 1] if index + 1 < len(network.steps) else None
                if following is not None and following.is_data_movement:
                    continue
                ends.append(own)
                trains = False
        return ends

    def _locate_cut(self, name: str | None) -> tuple[int, str]:
        """Return (index of the first step behind, tensor) of the place where `name` passes alone."""
        if name is None:
            return 0, ""
        network = self.bridge.network
        return next(
            (i + 1, tensor)
            for i, tensor in network.single_tensor_cuts
            if network.get_plan_name(tensor) == name
        )

    def _train_block(self, start: str | None, end: str, number: int) -> float | None:
        """Train the steps from `start` to `end`.

        Return the mean loss of the last epoch, None with nothing to train.
        """
        recipe, bridge = self.recipe, self.bridge
        first, last = self._locate_cut(start)[0], self._locate_cut(end)[0]
        inside = {
            bridge.get_source_name(name)
            for step in bridge.network.steps[first:last]
            for name in (*step.parameter_sources.values(), *step.inputs)
        }
        names = [
            name
            for name in bridge.parameter_of
            if name in inside and name not in self.constraints.frozen
        ]
        soft = SoftRounding(bridge, names) if recipe.rounding == "soft" else None
        total = recipe.block_epochs * max(len(self.samples) // recipe.batch_size, 1)
        written = {step.plan_tensor for step in bridge.network.steps[first:last]} | set(names)
        logs = self._get_block_scales(written, start)
        if not (names or logs):
            return None
        inputs = self._collect_block_inputs(start)
        teacher = Teacher(self._model, [end], self.samples)
        target = teacher.all([end])[end]
        groups = (
            soft.get_parameter_groups(recipe.lr)
            if soft is not None
            else self._get_parameter_groups(names, recipe.lr)
        )
        optimizer, schedule = self._make_optimizer(
            groups, list({id(p): p for p in logs.values()}.values()), total
        )
        level = target.float().var().clamp(min=1e-12)
        bridge.log2_scales = logs
        done, mean = 0, math.nan
        for epoch in range(recipe.block_epochs):
            losses = []
            for index in self.samples.iterate_shuffled(
                recipe.batch_size, recipe.seed, 10_000 * (number + 1) + epoch
            ):
                given = (
                    self.samples.get_inputs(index)
                    if start is None
                    else {inputs[0]: inputs[1][index].float()}
                )
                place, tensor = self._locate_cut(end)
                part = slice(self._locate_cut(start)[0], place)
                got = dict(bridge.integers(given, part))[tensor]
                held = bridge.network.held.get(tensor)
                real = got if held is None else (got - held.zero_point) / held.scale
                loss = ((real - target[index]) ** 2).mean() / level
                if soft is not None:
                    loss = loss + soft.compute_penalty(done / total)
                self._apply_step(
                    loss, optimizer, schedule, f"block {number + 1}, epoch {epoch + 1}"
                )
                losses.append(float(loss.detach()))
                done += 1
            mean = float(np.mean(losses)) if losses else math.nan
        if soft is not None:
            soft.finalize()
        bridge.log2_scales = {}
        return mean

    def _get_block_scales(self, names: Collection[str], start: str | None) -> dict[str, Any]:
        """Return the scales to learn among those of `names`.

        Not the one of the integers that come in.
        """
        if self._scales is None:
            return {}
        incoming = None if start is None else self._scales.log2_scales.get(start)
        return {
            name: log
            for name, log in self._scales.log2_scales.items()
            if name in names and log is not incoming
        }

    def _collect_block_inputs(self, start: str | None) -> tuple[str, Any]:
        """Return (tensor, counts of all samples) that reach the place `start`.

        Int8 or int16 where they fit.
        """
        if start is None:
            return "", None
        place, tensor = self._locate_cut(start)
        kept = []
        for part in self.samples.iterate_slices(_BATCH_SIZE):
            with torch.no_grad():
                for name, value in self.bridge.integers(
                    self.samples.get_inputs(part), slice(0, place)
                ):
                    if name == tensor:
                        kept.append(
                            value
                            if tensor not in self.bridge.network.held
                            else value.to(torch.int16)
                        )
        return tensor, torch.cat(kept)

    # ---- as a whole --------------------------------------------------------------------------------------------------

    def train_end_to_end(self) -> None:
        """Train everything at once."""
        recipe, bridge = self.recipe, self.bridge
        names = [name for name in bridge.parameter_of if name not in self.constraints.frozen]
        places = [
            name
            for name in self._find_block_ends()
            if name not in (*bridge.network.outputs, *self._judged)
        ]
        taps = places if recipe.loss == "distill" and recipe.features > 0 else []
        teacher = Teacher(
            self._model, [*bridge.network.outputs, *self._judged, *taps], self.samples
        )
        steps = max(len(self.samples) // recipe.batch_size, 1)
        scales = self._scales.parameters if self._scales is not None else []
        optimizer, schedule = self._make_optimizer(
            self._get_parameter_groups(names, recipe.lr), scales, recipe.epochs * steps
        )
        bridge.log2_scales = self._scales.log2_scales if self._scales is not None else {}
        first = self._done.get("epochs", 0)
        if first:
            optimizer.load_state_dict(self._done["optimizer"])
            schedule.load_state_dict(self._done["schedule"])
        best, since = self._done.get("best"), self._done.get("since", 0)
        if best is None:
            best = self._evaluate_module(teacher, taps), self._get_state()
        for epoch in range(first, recipe.epochs):
            bridge.train()
            losses = []
            for count, index in enumerate(
                self.samples.iterate_shuffled(recipe.batch_size, recipe.seed, epoch)
            ):
                outputs = bridge(self.samples.get_inputs(index), [*self._judged, *taps])
                loss = self._compute_loss(
                    outputs, teacher.compute_targets(index), self.samples.get_labels(index), taps
                )
                self._apply_step(loss, optimizer, schedule, f"epoch {epoch + 1}, step {count + 1}")
                losses.append(float(loss.detach()))
                self._report_progress("training", epoch * steps + count + 1, recipe.epochs * steps)
            bridge.eval()
            value = self._evaluate_module(teacher, taps)
            measured = value if self._evaluate is not None else None
            self.history.append(Epoch("whole", epoch + 1, float(np.mean(losses)), measured))
            best, since = ((value, self._get_state()), 0) if value > best[0] else (best, since + 1)
            self._save_checkpoint(
                epochs=epoch + 1,
                optimizer=optimizer.state_dict(),
                schedule=schedule.state_dict(),
                best=best,
                since=since,
            )
            if recipe.patience is not None and since >= recipe.patience:
                break
        bridge.log2_scales = {}
        self._load_state({"state": best[1]})

    def _evaluate_module(self, teacher: Teacher, taps: Sequence[str]) -> float:
        """Return how good the bridge is as it stands."""
        if self._evaluate is not None:
            return self._evaluate()
        losses = []
        with torch.no_grad():
            for part in self.samples.iterate_slices(_BATCH_SIZE):
                outputs = self.bridge(self.samples.get_inputs(part), [*self._judged, *taps])
                loss = self._compute_loss(
                    outputs, teacher.compute_targets(part), self.samples.get_labels(part), taps
                )
                losses.append(float(loss) * len(next(iter(outputs.values()))))
        return -sum(losses) / len(self.samples)

    def _compute_loss(
        self,
        outputs: Mapping[str, Any],
        targets: Mapping[str, Any],
        labels: Any,
        taps: Sequence[str],
    ) -> Any:
        recipe = self.recipe
        if callable(recipe.loss):
            return recipe.loss(outputs, targets, labels)
        if recipe.loss == "labels":
            if labels is None:
                raise ConfigError(
                    "loss 'labels': the training data have no labels; give some or distill"
                )
            scores = outputs[self.bridge.network.outputs[0]]
            return torch.nn.functional.cross_entropy(
                scores.reshape(len(scores), -1), labels.long().reshape(-1)
            )
        loss = sum(_normalized_mse(outputs[name], targets[name]) for name in self._judged) / len(
            self._judged
        )
        if taps:
            loss = loss + recipe.features * sum(
                _normalized_mse(outputs[n], targets[n]) for n in taps
            ) / len(taps)
        return loss

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _get_parameter_groups(self, names: Sequence[str], lr: float) -> list[dict[str, Any]]:
        """Return Adam's groups: the step of a parameter follows its size."""
        found = []
        for name in names:
            parameter = self.bridge.parameter_of[name]
            size = float(parameter.detach().double().square().mean().sqrt())
            found.append({"params": [parameter], "lr": lr * (size or 1.0)})
        return found

    def _make_optimizer(
        self, groups: Sequence[dict[str, Any]], scales: Sequence[Any], total: int
    ) -> tuple[Any, Any]:
        own = [{"params": list(scales), "lr": self._scale_lr}] if len(scales) else []
        import_dynamo()
        optimizer = torch.optim.Adam([*groups, *own])
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(total, 1))

    def _apply_step(self, loss: Any, optimizer: Any, schedule: Any, where: str) -> None:
        if not math.isfinite(float(loss.detach())):
            kept = (
                f"; the state before it is in {self._file.path}" if self._file is not None else ""
            )
            raise ConfigError(
                f"the loss became {float(loss.detach())} in {where}; lower --lr (now "
                f"{self.recipe.lr:g}){kept}"
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        self._clamp_parameters()
        if self._scales is not None:
            self.bridge.set_plan(self._scales.plan())

    def _clamp_parameters(self) -> None:
        """Cut the parameters at their limits."""
        with torch.no_grad():
            for name, top in self._limits.items():
                self.bridge.parameter_of[name].clamp_(-top, top)

    # ---- state -------------------------------------------------------------------------------------------------------

    def _get_state(self) -> dict[str, Any]:
        """Return everything that is learned."""
        found = {
            f"parameter {name}": p.detach().clone() for name, p in self.bridge.parameter_of.items()
        }
        if self._scales is not None:
            found.update(
                {f"scale {i}": p.detach().clone() for i, p in enumerate(self._scales.parameters)}
            )
        return found

    def _load_state(self, done: Mapping[str, Any]) -> None:
        state = done["state"]
        with torch.no_grad():
            for name, parameter in self.bridge.parameter_of.items():
                parameter.copy_(state[f"parameter {name}"])
            if self._scales is not None:
                for i, parameter in enumerate(self._scales.parameters):
                    parameter.copy_(state[f"scale {i}"])
                self.bridge.set_plan(self._scales.plan())
        self.history = [Epoch(*line) for line in done.get("history", [])] or self.history

    def _save_checkpoint(self, **more: Any) -> None:
        self._done = {**self._done, **more}
        if self._file is not None:
            history = [(e.part, e.number, e.loss, e.metric) for e in self.history]
            self._file.write({**self._done, "state": self._get_state(), "history": history})

    def _report_progress(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)


def _get_loss_tensors(bridge: QatModule, model: ir.Model) -> list[str]:
    """Return what the outputs are judged by.

    Themselves, or what a Softmax or a Sigmoid makes them of.
    """
    network, sources = bridge.network, map_outputs_to_logits(model)
    known = {network.get_plan_name(name) for step in network.steps for name in step.outputs}
    return [
        source if (source := sources.get(name, "")) in known else name for name in network.outputs
    ]


def _normalized_mse(got: Any, want: Any) -> Any:
    """Return the mean square of the difference over the variance of what is wanted."""
    want = want.float()
    return ((got - want) ** 2).mean() / want.var().clamp(min=1e-12)


def _resolve_limit(parameter: Any, top: float | str) -> float:
    if isinstance(top, str):
        return float(
            np.percentile(np.abs(parameter.detach().cpu().numpy()), float(top.removeprefix("p")))
        )
    return float(top)
