"""A model in stages: each tensor is asked for once, in order, and each stage is handed all that it
reads.
"""

import numpy as np
import onnx

from lingeronnx.ir import ir
from lingeronnx.runtime.runners import float_runner
from tests.nets import residual


def parts(monkeypatch, held):
    model = residual()
    names = [str(v.name) for node in model.graph for v in node.outputs]
    monkeypatch.setattr(float_runner, "MAX_STAGE_BYTES", held)
    return model, names, float_runner.group_tensors_by_size(model, names)


def test_groups_keep_the_order_and_stay_within_the_bytes(monkeypatch):
    model, names, groups = parts(monkeypatch, 4000)
    assert [name for group in groups for name in group] == names
    assert len(groups) > 1
    size = {
        str(v.name): 4 * int(np.prod([int(d or 1) for d in ir.get_shape(v)]))
        for v in ir.iter_values(model)
    }
    for group, behind in zip(groups, [*groups[1:], None], strict=True):
        assert len(group) == 1 or sum(size[name] for name in group) <= 4000
        if behind is not None:  # no group ends before it has to
            assert sum(size[name] for name in group) + size[behind[0]] > 4000


def test_all_in_one_group_where_there_is_room_or_where_sizes_are_unknown(monkeypatch):
    _, names, groups = parts(monkeypatch, 1 << 40)
    assert groups == [names]
    model = residual()
    next(iter(model.graph)).outputs[0].shape = None
    monkeypatch.setattr(float_runner, "MAX_STAGE_BYTES", 1)
    assert float_runner.group_tensors_by_size(model, names) == [names]


def test_stages_read_only_what_earlier_ones_hand_on(monkeypatch):
    model, names, groups = parts(monkeypatch, 4000)
    proto = ir.to_proto(model)
    types = dict.fromkeys((*names, "x"), onnx.TensorProto.FLOAT)
    there = {"x"}
    for stage, group in zip(
        float_runner.split_into_stages(proto, groups, types), groups, strict=True
    ):
        assert set(stage.inputs) <= there
        assert list(stage.outputs) == group
        there |= {*stage.outputs, *stage.handed_on}
    assert there >= set(names)
