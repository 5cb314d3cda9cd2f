"""LSTM layers with a projected state, with the class and parameter names of existing checkpoints.

`LSTMP` is one layer in one direction; `UBLSTMP` runs two of them, forward and backward.
`FastUBLSTMP` is the same based on ``nn.LSTM``, and `NormalizeFastLSTMP` is an ``nn.LSTM`` with
clamps. All compute the same as ``nn.LSTM(proj_size=...)`` (formula in `exporter.projection`);
`lstmp_layouts` converts checkpoints between the layouts. Inputs are [N, T, I], batch first.
Clipping of states and masking of padded steps are left to the caller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...common.errors import ConfigError, DataError
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

    With gates in the order i, f, g, o, it has the parameters ``input_linearity.weight`` [4C, I],
    ``input_linearity.bias`` [4C], ``state_linearity.weight`` [4C, P] and
    ``state_projection.weight`` [P, C].

    Parameters
    ----------
    input_size : int
        I, elements of a step.
    hidden_size : int
        P, elements of the projected state, which is the output.
    cell_size : int
        C, number of cells. ``nn.LSTM`` calls it hidden_size, and P proj_size.
    batch_first : bool
        Must be True.
    go_forward : bool
        False runs from the last step to the first.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        cell_size: int,
        batch_first: bool = True,
        go_forward: bool = True,
    ) -> None:
        """Create the three linear layers; a False `go_forward` runs the sequence from its end.

        Raises ConfigError if `batch_first` is False or a size is below 1.
        """
        super().__init__()
        if not batch_first:
            raise ConfigError(
                "LSTMP supports the batch on axis 0 only: use batch_first=True and transpose the "
                "input"
            )
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "cell_size": cell_size}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} of an LSTMP is {size}; it must be at least 1")
        self.input_size, self.hidden_size, self.cell_size = input_size, hidden_size, cell_size
        self.go_forward = go_forward
        self.input_linearity = nn.Linear(input_size, 4 * cell_size)
        self.state_linearity = nn.Linear(hidden_size, 4 * cell_size, bias=False)
        self.state_projection = nn.Linear(cell_size, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters uniformly in +-1/sqrt(C), as ``nn.LSTM`` does."""
        bound = self.cell_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Run the layer.

        Parameters
        ----------
        inputs : [N, T, I]
        states
            Initial state and cell, [1, N, P] and [1, N, C], or [N, P] and [N, C]; by default zeros.

        Returns
        -------
        y : [N, T, P]
        states
            Last state [1, N, P] and cell [1, N, C].

        Raises
        ------
        DataError
            If the initial states have other shapes.
        """
        start = (None, None) if states is None else self._flatten_states(inputs, states)
        weights = DirectionWeights(
            self.input_linearity.weight,
            self.state_linearity.weight,
            self.input_linearity.bias,
            self.state_projection.weight,
        )
        y, (h, c) = run_direction(inputs, start, weights, self.go_forward)
        return y, (h[None], c[None])

    def _flatten_states(self, inputs: Tensor, states: States) -> States:
        """Return initial state and cell as [N, P] and [N, C], after checking their shapes.

        They may have a leading axis of 1. Raises DataError for other shapes, except in an export.
        """
        flattened = []
        for name, state, size in zip(
            ("state", "cell"), states, (self.hidden_size, self.cell_size), strict=True
        ):
            flat = state.squeeze(0) if state.dim() == 3 else state
            if not is_exporting() and flat.shape != (inputs.shape[0], size):
                raise DataError(
                    f"the initial {name} of an LSTMP has shape {list(state.shape)}; it must be "
                    f"[1, {inputs.shape[0]}, {size}] or [{inputs.shape[0]}, {size}]"
                )
            flattened.append(flat)
        return flattened[0], flattened[1]

    def extra_repr(self) -> str:
        """Return the sizes and the direction as text, for ``print(module)``."""
        return (
            f"{self.input_size}, {self.hidden_size}, cell_size={self.cell_size}, "
            f"go_forward={self.go_forward}"
        )


class UBLSTMP(nn.Module):
    """Bidirectional LSTM with projection: `forward_lstmp` and `backward_lstmp` on the same input.

    The sizes are those of `LSTMP`, per direction. The outputs are [N, T, 2P], forward first.
    """

    def __init__(
        self, input_size: int, hidden_size: int, cell_size: int, batch_first: bool = True
    ) -> None:
        """Create a forward and a backward `LSTMP` of the same sizes.

        Raises ConfigError if `batch_first` is False or a size is below 1.
        """
        super().__init__()
        self.forward_lstmp = LSTMP(input_size, hidden_size, cell_size, batch_first)
        self.backward_lstmp = LSTMP(
            input_size, hidden_size, cell_size, batch_first, go_forward=False
        )

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Run both directions.

        Parameters
        ----------
        inputs : [N, T, I]
        states
            Initial states [2, N, P] and cells [2, N, C]; by default zeros.

        Returns
        -------
        y : [N, T, 2P]
        states
            Last states [2, N, P] and cells [2, N, C].
        """
        forward_states, backward_states = _split_directions(states)
        return _join_directions(
            self.forward_lstmp(inputs, forward_states), self.backward_lstmp(inputs, backward_states)
        )


class FastUBLSTMP(nn.Module):
    """`UBLSTMP` based on ``nn.LSTM`` with proj_size, which needs fewer outputs than cells."""

    def __init__(
        self, input_size: int, hidden_size: int, cell_size: int, batch_first: bool = True
    ) -> None:
        """Create two `nn.LSTM` with projection, one for each direction.

        Raises ConfigError if `batch_first` is False, or `hidden_size` is not below `cell_size`.
        """
        super().__init__()
        if not batch_first:
            raise ConfigError(
                "FastUBLSTMP supports the batch on axis 0 only: use batch_first=True and transpose "
                "the input"
            )
        if hidden_size >= cell_size:
            raise ConfigError(
                f"nn.LSTM supports only fewer outputs than cells, not {hidden_size} outputs for "
                f"{cell_size} cells; use UBLSTMP"
            )
        self.forward_lstmp = nn.LSTM(input_size, cell_size, proj_size=hidden_size, batch_first=True)
        self.backward_lstmp = nn.LSTM(
            input_size, cell_size, proj_size=hidden_size, batch_first=True
        )

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Run both directions.

        In an export the backward direction is computed in a form that the exporter can merge.

        Parameters
        ----------
        inputs : [N, T, I]
        states
            Initial states [2, N, P] and cells [2, N, C]; by default zeros.

        Returns
        -------
        y : [N, T, 2P]
            Outputs of the forward, then of the backward direction.
        states
            Last states [2, N, P] and cells [2, N, C].

        Raises
        ------
        DataError
            If the initial states do not have two directions.
        """
        forward_states, backward_states = _split_directions(states)
        if not is_exporting():
            reversed_y, last = self.backward_lstmp(inputs.flip(1), backward_states)
            backward = reversed_y.flip(1), last
        else:
            # The reversal must be adjacent to the LSTM, for the exporter to merge the directions.
            layer = self.backward_lstmp
            flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]
            weights = get_layer_weights(layer, flat_weights)[0][0]
            start: tuple[Tensor | None, Tensor | None] = (None, None)
            if backward_states is not None:
                start = backward_states[0][0], backward_states[1][0]
            y, (h, c) = run_direction(inputs, start, weights, False)
            backward = y, (h[None], c[None])
        return _join_directions(self.forward_lstmp(inputs, forward_states), backward)


def _split_directions(states: States | None) -> tuple[States | None, States | None]:
    """Split states and cells [2, N, ...] into those of the two directions, [1, N, ...].

    (None, None) for None; raises DataError for other shapes.
    """
    if states is None:
        return None, None
    if any(state.dim() != 3 or state.shape[0] != 2 for state in states):
        sizes = " and ".join(str(list(state.shape)) for state in states)
        raise DataError(
            f"states of two directions must have shapes [2, N, P] and [2, N, C]; these have {sizes}"
        )
    h, c = states
    return (h[:1], c[:1]), (h[1:], c[1:])


def _join_directions(
    forward: tuple[Tensor, States], backward: tuple[Tensor, States]
) -> tuple[Tensor, States]:
    """Join (outputs, (states, cells)) of the forward and the backward direction.

    Outputs are concatenated along the elements, [N, T, 2P], states and cells along axis 0, [2, N,
    ...].
    """
    (y, (h, c)), (y_back, (h_back, c_back)) = forward, backward
    return torch.cat([y, y_back], dim=2), (torch.cat([h, h_back]), torch.cat([c, c_back]))


class NormalizeFastLSTMP(nn.LSTM):
    """``nn.LSTM`` with proj_size that clamps weights, biases and outputs in its forward.

    The last states are not clamped.

    Parameters
    ----------
    args, kwargs
        Arguments of ``nn.LSTM``.
    normalize_weight_value, normalize_bias_value, normalize_output_value
        Largest absolute values; None for no clamp.
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
        """Create an `nn.LSTM` with projection whose weights, biases and outputs are clamped.

        The three values are the largest magnitudes, None for no clamp; the other arguments are
        those of `nn.LSTM`. Raises ConfigError without `proj_size` or if a value is not above 0.
        """
        super().__init__(*args, **kwargs)
        if not self.proj_size:
            raise ConfigError("NormalizeFastLSTMP needs proj_size, the size of the projected state")
        values = (normalize_weight_value, normalize_bias_value, normalize_output_value)
        if any(value is not None and value <= 0 for value in values):
            raise ConfigError(
                f"the clamps of a NormalizeFastLSTMP are {values}; each must be above 0, or None"
            )
        self.normalize_weight_value, self.normalize_bias_value, self.normalize_output_value = values

    def forward(self, input: Any, hx: States | None = None) -> Any:
        """Return outputs and last states as ``nn.LSTM``, computed with clamped weights and biases.

        The outputs are clamped too, the last states are not. A PackedSequence is supported in torch
        only, not in an export.
        """
        limits = {"bias": self.normalize_bias_value, "weight": self.normalize_weight_value}
        clamped = [
            _clamp(getattr(self, name), limits[name.partition("_")[0]])
            for name in self._flat_weights_names
        ]
        if is_exporting():
            y, states = run_projected_lstm(self, clamped, input, hx)
        else:
            flat_weights, self._flat_weights = self._flat_weights, clamped
            try:
                y, states = super().forward(input, hx)
            finally:
                self._flat_weights = flat_weights
        if isinstance(y, PackedSequence):
            return y._replace(data=_clamp(y.data, self.normalize_output_value)), states
        return _clamp(y, self.normalize_output_value), states


def _clamp(tensor: Tensor, limit: float | None) -> Tensor:
    """Return `tensor` clamped to [-limit, limit], or itself if `limit` is None."""
    return tensor if limit is None else tensor.clamp(-limit, limit)
