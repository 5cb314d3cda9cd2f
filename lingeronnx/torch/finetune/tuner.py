"""Fine-tuning a bridge: block by block first, then as a whole, towards the float model's answers or labels.

Block by block (`reconstruct`): each block between two places where a single tensor passes is trained by itself to give
what the float model gives there, from the integers that really reach it (BRECQ, Li et al. 2021). A handful of samples
will do, since every position of every map is a target. As a whole (`train`): all weights, biases and, if wanted, scales
at once; the loss is the distance to the float model's outputs and to its tensors at those places, or one with labels.
Of an output that a Softmax or a Sigmoid makes, the distance is that of what these read: behind them sure decisions have
next to no gradient.

Owns: the loops, what is optimised, checkpoints. Must not know: operators, how integers come about (`bridge`), files of
models.
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

    model : the float graph whose values are the targets; the bridge's own may have other weights to begin with.
    evaluate : returns a number, the larger the better, for the bridge as it stands; without it the loss over the
    samples counts. Of the whole, the best epoch is kept, or the start where none is better. checkpoint : where the
    state is kept after every part and epoch.
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
        self._scales = LearnedScales(module.parts, module.plan, module.target) if learned else None
        self._scale_lr = recipe.scale_lr if recipe.scale_lr is not None else 1e-2 if power else 1e-4
        self._file = Checkpoint(checkpoint) if checkpoint is not None else None
        self._done = self._file.read() if self._file is not None and resume else {}
        module.output_limits = self.constraints.outputs
        self._limits = {
            name: _resolve_limit(module.parameter_of[name], top) for name, top in self.constraints.weights.items()
        }
        for name in self.constraints.frozen:
            module.parameter_of[name].requires_grad_(False)
        if self._done:
            self._restore(self._done)
        self._project()

    def run(self) -> list[Epoch]:
        """Train by the recipe and return the history; the bridge holds the result."""
        if self.recipe.method in ("blocks", "both"):
            self.reconstruct()
        if self.recipe.method in ("whole", "both"):
            self.train()
        self.bridge.eval()
        return self.history

    # ---- block by block ----------------------------------------------------------------------------------------------

    def reconstruct(self) -> None:
        """Train block after block towards the float model's tensor at its end."""
        ends = self._ends()
        for number, (start, end) in enumerate(zip([None, *ends], ends, strict=False)):
            if number < self._done.get("blocks", 0):
                continue
            loss = self._block(start, end, number)
            if loss is not None:
                self.history.append(Epoch(f"block to {end}", number + 1, loss))
            self._save(blocks=number + 1)
            self._tell("blocks", number + 1, len(ends))

    def _ends(self) -> list[str]:
        """Return the plan's names of the tensors where blocks end: between two lie parameters to train."""
        network, ends, trains = self.bridge.network, [], False
        known = {str(name) for name in self.bridge.plan.tensors}
        cuts = dict(network.cuts)
        for index, step in enumerate(network.steps):
            held = {self.bridge.source_name(name) for name in (*step.given.values(), *step.inputs)}
            trains = trains or any(name in self.bridge.parameter_of for name in held)
            own = network.plan_name(cuts.get(index, ""))
            if trains and own in known and own not in ends:
                following = network.steps[index + 1] if index + 1 < len(network.steps) else None
                if following is not None and following.moves:
                    continue
                ends.append(own)
                trains = False
        return ends

    def _place(self, name: str | None) -> tuple[int, str]:
        """Return (index of the first step behind, tensor) of the place where `name` passes alone."""
        if name is None:
            return 0, ""
        network = self.bridge.network
        return next((i + 1, tensor) for i, tensor in network.cuts if network.plan_name(tensor) == name)

    def _block(self, start: str | None, end: str, number: int) -> float | None:
        """Train the steps from `start` to `end`; return the mean loss of the last epoch, None with nothing to train."""
        recipe, bridge = self.recipe, self.bridge
        first, last = self._place(start)[0], self._place(end)[0]
        inside = {
            bridge.source_name(name)
            for step in bridge.network.steps[first:last]
            for name in (*step.given.values(), *step.inputs)
        }
        names = [name for name in bridge.parameter_of if name in inside and name not in self.constraints.frozen]
        soft = SoftRounding(bridge, names) if recipe.rounding == "soft" else None
        total = recipe.block_epochs * max(len(self.samples) // recipe.batch_size, 1)
        written = {step.written for step in bridge.network.steps[first:last]} | set(names)
        logs = self._logs(written, start)
        if not (names or logs):
            return None
        inputs = self._reaching(start)
        teacher = Teacher(self._model, [end], self.samples)
        target = teacher.all([end])[end]
        groups = soft.groups(recipe.lr) if soft is not None else self._groups(names, recipe.lr)
        optimizer, schedule = self._optimizer(groups, list({id(p): p for p in logs.values()}.values()), total)
        level = target.float().var().clamp(min=1e-12)
        bridge.scale_logs = logs
        done, mean = 0, math.nan
        for epoch in range(recipe.block_epochs):
            losses = []
            for index in self.samples.shuffled(recipe.batch_size, recipe.seed, 10_000 * (number + 1) + epoch):
                given = self.samples.feed(index) if start is None else {inputs[0]: inputs[1][index].float()}
                place, tensor = self._place(end)
                part = slice(self._place(start)[0], place)
                got = dict(bridge.integers(given, part))[tensor]
                held = bridge.network.held.get(tensor)
                real = got if held is None else (got - held.zero_point) / held.scale
                loss = ((real - target[index]) ** 2).mean() / level
                if soft is not None:
                    loss = loss + soft.penalty(done / total)
                self._step(loss, optimizer, schedule, f"block {number + 1}, epoch {epoch + 1}")
                losses.append(float(loss.detach()))
                done += 1
            mean = float(np.mean(losses)) if losses else math.nan
        if soft is not None:
            soft.settle()
        bridge.scale_logs = {}
        return mean

    def _logs(self, names: Collection[str], start: str | None) -> dict[str, Any]:
        """Return the scales to learn among those of `names`: not the one of the integers that come in."""
        if self._scales is None:
            return {}
        incoming = None if start is None else self._scales.logs.get(start)
        return {name: log for name, log in self._scales.logs.items() if name in names and log is not incoming}

    def _reaching(self, start: str | None) -> tuple[str, Any]:
        """Return (tensor, counts of all samples) that reach the place `start`; int8 or int16 where they fit."""
        if start is None:
            return "", None
        place, tensor = self._place(start)
        kept = []
        for part in self.samples.blocks(_BATCH_SIZE):
            with torch.no_grad():
                for name, value in self.bridge.integers(self.samples.feed(part), slice(0, place)):
                    if name == tensor:
                        kept.append(value if tensor not in self.bridge.network.held else value.to(torch.int16))
        return tensor, torch.cat(kept)

    # ---- as a whole --------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train everything at once."""
        recipe, bridge = self.recipe, self.bridge
        names = [name for name in bridge.parameter_of if name not in self.constraints.frozen]
        places = [name for name in self._ends() if name not in (*bridge.network.outputs, *self._judged)]
        taps = places if recipe.loss == "distill" and recipe.features > 0 else []
        teacher = Teacher(self._model, [*bridge.network.outputs, *self._judged, *taps], self.samples)
        steps = max(len(self.samples) // recipe.batch_size, 1)
        scales = self._scales.parameters if self._scales is not None else []
        optimizer, schedule = self._optimizer(self._groups(names, recipe.lr), scales, recipe.epochs * steps)
        bridge.scale_logs = self._scales.logs if self._scales is not None else {}
        first = self._done.get("epochs", 0)
        if first:
            optimizer.load_state_dict(self._done["optimizer"])
            schedule.load_state_dict(self._done["schedule"])
        best, since = self._done.get("best"), self._done.get("since", 0)
        if best is None:
            best = self._value(teacher, taps), self._state()
        for epoch in range(first, recipe.epochs):
            bridge.train()
            losses = []
            for count, index in enumerate(self.samples.shuffled(recipe.batch_size, recipe.seed, epoch)):
                outputs = bridge(self.samples.feed(index), [*self._judged, *taps])
                loss = self._loss(outputs, teacher.targets(index), self.samples.answers(index), taps)
                self._step(loss, optimizer, schedule, f"epoch {epoch + 1}, step {count + 1}")
                losses.append(float(loss.detach()))
                self._tell("training", epoch * steps + count + 1, recipe.epochs * steps)
            bridge.eval()
            value = self._value(teacher, taps)
            measured = value if self._evaluate is not None else None
            self.history.append(Epoch("whole", epoch + 1, float(np.mean(losses)), measured))
            best, since = ((value, self._state()), 0) if value > best[0] else (best, since + 1)
            self._save(
                epochs=epoch + 1,
                optimizer=optimizer.state_dict(),
                schedule=schedule.state_dict(),
                best=best,
                since=since,
            )
            if recipe.patience is not None and since >= recipe.patience:
                break
        bridge.scale_logs = {}
        self._restore({"state": best[1]})

    def _value(self, teacher: Teacher, taps: Sequence[str]) -> float:
        """Return how good the bridge is as it stands."""
        if self._evaluate is not None:
            return self._evaluate()
        losses = []
        with torch.no_grad():
            for part in self.samples.blocks(_BATCH_SIZE):
                outputs = self.bridge(self.samples.feed(part), [*self._judged, *taps])
                loss = self._loss(outputs, teacher.targets(part), self.samples.answers(part), taps)
                losses.append(float(loss) * len(next(iter(outputs.values()))))
        return -sum(losses) / len(self.samples)

    def _loss(self, outputs: Mapping[str, Any], targets: Mapping[str, Any], labels: Any, taps: Sequence[str]) -> Any:
        recipe = self.recipe
        if callable(recipe.loss):
            return recipe.loss(outputs, targets, labels)
        if recipe.loss == "labels":
            if labels is None:
                raise ConfigError("loss 'labels': the training data have no labels; give some or distill")
            scores = outputs[self.bridge.network.outputs[0]]
            return torch.nn.functional.cross_entropy(scores.reshape(len(scores), -1), labels.long().reshape(-1))
        loss = sum(_normalized_mse(outputs[name], targets[name]) for name in self._judged) / len(self._judged)
        if taps:
            loss = loss + recipe.features * sum(_normalized_mse(outputs[n], targets[n]) for n in taps) / len(taps)
        return loss

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _groups(self, names: Sequence[str], lr: float) -> list[dict[str, Any]]:
        """Return Adam's groups: the step of a parameter follows its size."""
        found = []
        for name in names:
            parameter = self.bridge.parameter_of[name]
            size = float(parameter.detach().double().square().mean().sqrt())
            found.append({"params": [parameter], "lr": lr * (size or 1.0)})
        return found

    def _optimizer(self, groups: Sequence[dict[str, Any]], scales: Sequence[Any], total: int) -> tuple[Any, Any]:
        own = [{"params": list(scales), "lr": self._scale_lr}] if len(scales) else []
        import_dynamo()
        optimizer = torch.optim.Adam([*groups, *own])
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(total, 1))

    def _step(self, loss: Any, optimizer: Any, schedule: Any, where: str) -> None:
        if not math.isfinite(float(loss.detach())):
            kept = f"; the state before it is in {self._file.path}" if self._file is not None else ""
            raise ConfigError(
                f"the loss became {float(loss.detach())} in {where}; lower --lr (now {self.recipe.lr:g}){kept}"
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        self._project()
        if self._scales is not None:
            self.bridge.set_plan(self._scales.plan())

    def _project(self) -> None:
        """Cut the parameters at their limits."""
        with torch.no_grad():
            for name, top in self._limits.items():
                self.bridge.parameter_of[name].clamp_(-top, top)

    # ---- state -------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """Return everything that is learned."""
        found = {f"parameter {name}": p.detach().clone() for name, p in self.bridge.parameter_of.items()}
        if self._scales is not None:
            found.update({f"scale {i}": p.detach().clone() for i, p in enumerate(self._scales.parameters)})
        return found

    def _restore(self, done: Mapping[str, Any]) -> None:
        state = done["state"]
        with torch.no_grad():
            for name, parameter in self.bridge.parameter_of.items():
                parameter.copy_(state[f"parameter {name}"])
            if self._scales is not None:
                for i, parameter in enumerate(self._scales.parameters):
                    parameter.copy_(state[f"scale {i}"])
                self.bridge.set_plan(self._scales.plan())
        self.history = [Epoch(*line) for line in done.get("history", [])] or self.history

    def _save(self, **more: Any) -> None:
        self._done = {**self._done, **more}
        if self._file is not None:
            history = [(e.part, e.number, e.loss, e.metric) for e in self.history]
            self._file.write({**self._done, "state": self._state(), "history": history})

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)


def _get_loss_tensors(bridge: QatModule, model: ir.Model) -> list[str]:
    """Return what the outputs are judged by: themselves, or what a Softmax or a Sigmoid makes them of."""
    network, sources = bridge.network, map_outputs_to_logits(model)
    known = {network.plan_name(name) for step in network.steps for name in step.outputs}
    return [source if (source := sources.get(name, "")) in known else name for name in network.outputs]


def _normalized_mse(got: Any, want: Any) -> Any:
    """Return the mean square of the difference over the variance of what is wanted."""
    want = want.float()
    return ((got - want) ** 2).mean() / want.var().clamp(min=1e-12)


def _resolve_limit(parameter: Any, top: float | str) -> float:
    if isinstance(top, str):
        return float(np.percentile(np.abs(parameter.detach().cpu().numpy()), float(top.removeprefix("p"))))
    return float(top)
