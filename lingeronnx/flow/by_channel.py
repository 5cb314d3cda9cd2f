"""Weights with a scale for each output channel, where the target has them and one scale per weight is far off.

One scale for all channels holds those badly whose weights are small beside the largest: of pointwise layers behind
depthwise ones, of channels that batch normalization was folded into. Equalization moves such ranges to the layer in
front, where it can. Where an output is still far from the float model's, the graph is also made with a scale for each
channel, and kept where the outputs are clearly nearer. The user who names `weight_scales` gets what is named.
"""

from __future__ import annotations

from ..errors import ConstraintError
from ..run.data import Progress
from .complete import Compared, compared
from .planned import assign_scales, observe_model
from .refined import refined
from .stages import gained, levels, with_note

__all__ = ["with_channel_scales"]

_FAR = 25.0  # dB of an output, or a part of one: below that it is tried
_CLEAR = 1.0  # dB on average: less is no reason for another form of scales


def with_channel_scales(made: Compared, progress: Progress | None = None) -> Compared:
    """Return `made`, or the same model with scales by channel where these bring its outputs clearly nearer.

    Only real data that can be read again are evidence. Plans and scales that were given stay.
    """
    planned = made.planned
    prepared, conf = planned.prepared, planned.prepared.conf
    if (
        "channel" not in prepared.row.weight_scales
        or "weight_scales" in conf.model_fields_set
        or conf.effort == "fast"
        or planned.basis.choice is None
        or prepared.read is not None
        or prepared.synthetic
        or prepared.weights_fixed
        or not prepared.data.rereadable
        or min(levels(made), default=_FAR) >= _FAR
    ):
        return made
    if progress is not None:
        progress("scales by channel", 0, None)
    try:
        other = assign_scales(observe_model(prepared.with_setting("weight_scales", "channel"), None, planned.observed))
        new = compared(other, refined(other, progress=progress), progress)
    except ConstraintError:  # with require_chip
        return made
    gain = gained(made, new)
    if gain < _CLEAR:
        return made
    return with_note(
        new,
        f"weights have a scale for each output channel: that brings the outputs {gain:.1f} dB nearer to the float "
        f"model's {new.seen.on}; --weight-scales tensor gives each weight one",
    )
