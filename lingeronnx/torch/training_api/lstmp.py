"""LSTM layers with a projected state, under the names and with the parameters that people's checkpoints have.

`LSTMP` is one layer in one direction; `UBLSTMP` is two of them, one forward and one backward, side
by side. `FastUBLSTMP` is the same of ``nn.LSTM``, `NormalizeFastLSTMP` an ``nn.LSTM`` with clamps.
All compute what ``nn.LSTM(proj_size=...)`` does (`projection` tells the formula); `lstmp_layouts`
converts the checkpoints of one into those of another. Inputs are [N, T, I], batch first. Clipping
of states and masks of lengths are the caller's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...errors import ConfigError, DataError
from ..exporter.projection import (
    DirectionWeights,
    States,
    get_layer_weights,
    is_exporting,
    run_direction,
    run_projected_lstm,
)

__all__ = ["LSTMP", "FastUBLSTMP", "NormalizeFastLSTMP", "UBLSTMP"]


class LSTMP(nn.Module):
    """One layer of LSTM with projection, in one direction.

    Parameters, gates in the order i, f, g, o: ``input_linearity.weight`` [4C, I] and ``.bias``
    [4C], ``state_linearity.weight`` [4C, P], ``state_projection.weight`` [P, C].

    Parameters
    ----------
    input_size : int
        I, elements of a step.
    hidden_size : int
        P, elements of the projected state, which is the output.
    cell_size : int
        C, cells. Called hidden_size by ``nn.LSTM``, whose proj_size is P.
    batch_first : bool
        True; there is no other form.
    go_forward : bool
        False walks from the last step to the first one.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        cell_size: int,
        batch_first: bool = True,
        go_forward: bool = True,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise ConfigError(
                "LSTMP takes the batch on axis 0 only: leave batch_first=True and transpose the "
                "input"
            )
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("cell_size", cell_size),
        ):
            if size < 1:
                raise ConfigError(f"{name} of an LSTMP is {size}; it is at least 1")
        self.input_size, self.hidden_size, self.cell_size = input_size, hidden_size, cell_size
        self.go_forward = go_forward
        self.input_linearity = nn.Linear(input_size, 4 * cell_size)
        self.state_linearity = nn.Linear(hidden_size, 4 * cell_size, bias=False)
        self.state_projection = nn.Linear(cell_size, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters evenly from +-1/sqrt(C), as ``nn.LSTM`` does."""
        reach = self.cell_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -reach, reach)

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Return y [N, T, P] and the last state [1, N, P] and cell [1, N, C].

        inputs : [N, T, I]. states : state and cell to begin with, (1, N, P) and (1, N, C) or (N, P)
        and (N, C); default zeros. Raises DataError for other sizes.
        """
        start = (None, None) if states is None else self._start(inputs, states)
        parts = DirectionWeights(
            self.input_linearity.weight,
            self.state_linearity.weight,
            self.input_linearity.bias,
            self.state_projection.weight,
        )
        y, (h, c) = run_direction(inputs, start, parts, self.go_forward)
        return y, (h[None], c[None])

    def _start(self, inputs: Tensor, states: States) -> States:
        """Return the states as (N, P) and (N, C)."""
        found = []
        for what, state, size in zip(
            ("state", "cell"), states, (self.hidden_size, self.cell_size), strict=True
        ):
            flat = state.squeeze(0) if state.dim() == 3 else state
            if not is_exporting() and flat.shape != (inputs.shape[0], size):
                raise DataError(
                    f"the {what} that an LSTMP begins with has shape {list(state.shape)}; give "
                    f"[1, {inputs.shape[0]}, {size}] or [{inputs.shape[0]}, {size}]"
                )
            found.append(flat)
        return found[0], found[1]

    def extra_repr(self) -> str:
        """Return the sizes for ``print(module)``."""
        return (
            f"{self.input_size}, {self.hidden_size}, cell_size={self.cell_size}, "
            f"go_forward={self.go_forward}"
        )


class UBLSTMP(nn.Module):
    """An `LSTMP` forward and one backward over the same input.

    ``forward_lstmp`` and ``backward_lstmp``.
    Sizes as of `LSTMP`, per direction; outputs [N, T, 2P], forward in front.
    """

    def __init__(
        self, input_size: int, hidden_size: int, cell_size: int, batch_first: bool = True
    ) -> None:
        super().__init__()
        self.forward_lstmp = LSTMP(input_size, hidden_size, cell_size, batch_first)
        self.backward_lstmp = LSTMP(
            input_size, hidden_size, cell_size, batch_first, go_forward=False
        )

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Return y [N, T, 2P] and the last states [2, N, P] and cells [2, N, C].

        inputs : [N, T, I]. states : states (2, N, P) and cells (2, N, C) to begin with; default
        zeros.
        """
        one, two = _split_directions(states)
        return _join_directions(self.forward_lstmp(inputs, one), self.backward_lstmp(inputs, two))


class FastUBLSTMP(nn.Module):
    """`UBLSTMP` of ``nn.LSTM`` with proj_size.

    ``forward_lstmp`` and ``backward_lstmp``, each of one direction.
    """

    def __init__(
        self, input_size: int, hidden_size: int, cell_size: int, batch_first: bool = True
    ) -> None:
        super().__init__()
        if not batch_first:
            raise ConfigError(
                "FastUBLSTMP takes the batch on axis 0 only: leave batch_first=True and transpose"
            )
        if hidden_size >= cell_size:
            raise ConfigError(
                f"torch's nn.LSTM projects to fewer values than it has cells, not {cell_size} to "
                f"{hidden_size}; use UBLSTMP"
            )
        self.forward_lstmp = nn.LSTM(input_size, cell_size, proj_size=hidden_size, batch_first=True)
        self.backward_lstmp = nn.LSTM(
            input_size, cell_size, proj_size=hidden_size, batch_first=True
        )

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Return y [N, T, 2P] and the last states [2, N, P] and cells [2, N, C].

        Arguments as of `UBLSTMP`.
        """
        one, two = _split_directions(states)
        if (
            is_exporting()
        ):  # so that the reversal stands at the LSTM, where the other direction takes its place
            back = self.backward_lstmp
            weights = get_layer_weights(
                back, [getattr(back, name) for name in back._flat_weights_names]
            )[0][0]
            y, (h, c) = run_direction(
                inputs, (None, None) if two is None else (two[0][0], two[1][0]), weights, False
            )
            return _join_directions(self.forward_lstmp(inputs, one), (y, (h[None], c[None])))
        y, end = self.backward_lstmp(inputs.flip(1), two)
        return _join_directions(self.forward_lstmp(inputs, one), (y.flip(1), end))


def _split_directions(states: States | None) -> tuple[States | None, States | None]:
    """Return the states of the two directions."""
    if states is None:
        return None, None
    if any(state.dim() != 3 or state.shape[0] != 2 for state in states):
        sizes = " and ".join(str(list(state.shape)) for state in states)
        raise DataError(
            f"states of two directions have shapes [2, N, P] and [2, N, C]; these have {sizes}"
        )
    h, c = states
    return (h[:1], c[:1]), (h[1:], c[1:])


def _join_directions(
    one: tuple[Tensor, States], two: tuple[Tensor, States]
) -> tuple[Tensor, States]:
    """Join outputs along the elements, states along the directions."""
    (y, (h, c)), (y_back, (h_back, c_back)) = one, two
    return torch.cat([y, y_back], dim=2), (torch.cat([h, h_back]), torch.cat([c, c_back]))


class NormalizeFastLSTMP(nn.LSTM):
    """``nn.LSTM`` with proj_size, and clamps in forward that keep weights, biases and outputs in a range.

    Takes what ``nn.LSTM`` takes. normalize_weight_value, normalize_bias_value,
    normalize_output_value : the largest magnitude of weights, of biases and of outputs, None for no
    clamp. The last states are not clamped.
    """

    _flat_weights: list[Tensor]

    def __init__(
        self,
        *args: Any,
        normalize_weight_value: float | None = 8,
        normalize_bias_value: float | None = 8,
        normalize_output_value: float | None = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not self.proj_size:
            raise ConfigError(
                "NormalizeFastLSTMP needs proj_size, the size of the projected state; give "
                "proj_size=..."
            )
        values = (normalize_weight_value, normalize_bias_value, normalize_output_value)
        if any(value is not None and value <= 0 for value in values):
            raise ConfigError(
                f"the clamps of a NormalizeFastLSTMP are {values}; each is above 0, or None"
            )
        self.normalize_weight_value, self.normalize_bias_value, self.normalize_output_value = values

    def forward(self, input: Any, hx: States | None = None) -> Any:
        """Return outputs and last states as ``nn.LSTM`` does, of clamped weights.

        A PackedSequence only in torch.
        """
        limits = {"bias": self.normalize_bias_value, "weight": self.normalize_weight_value}
        clamped = [
            _clamp(getattr(self, name), limits[name.partition("_")[0]])
            for name in self._flat_weights_names
        ]
        if is_exporting():
            y, states = run_projected_lstm(self, clamped, input, hx)
        else:
            held, self._flat_weights = self._flat_weights, clamped
            try:
                y, states = super().forward(input, hx)
            finally:
                self._flat_weights = held
        if isinstance(y, PackedSequence):
            return y._replace(data=_clamp(y.data, self.normalize_output_value)), states
        return _clamp(y, self.normalize_output_value), states


def _clamp(tensor: Tensor, value: float | None) -> Tensor:
    return tensor if value is None else tensor.clamp(-value, value)
