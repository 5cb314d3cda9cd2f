"""TensorBoard's file against the format's definition."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import lingeronnx as lo
from lingeronnx.analysis.profile.events import EVENTS_VERSION, crc32c


def event_class():
    """Build TensorFlow's messages from their published definition, for protobuf's own parser."""
    kinds = {"d": 1, "i": 3, "s": 9, "m": 11}
    file = descriptor_pb2.FileDescriptorProto(name="event_test.proto", package="t", syntax="proto3")
    for name, fields in {
        "Histo": [
            ("min", 1, "d"),
            ("max", 2, "d"),
            ("num", 3, "d"),
            ("sum", 4, "d"),
            ("sum_squares", 5, "d"),
            ("bucket_limit", 6, "d*"),
            ("bucket", 7, "d*"),
        ],
        "Value": [("tag", 1, "s"), ("histo", 5, "m:Histo")],
        "Summary": [("value", 1, "m*:Value")],
        "Event": [
            ("wall_time", 1, "d"),
            ("step", 2, "i"),
            ("file_version", 3, "s"),
            ("summary", 5, "m:Summary"),
        ],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(
                name=field,
                number=number,
                type=kinds[kind[0]],
                label=3 if "*" in kind else 1,
                type_name=f".t.{kind.partition(':')[2]}" if ":" in kind else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def naive_crc(data: bytes) -> int:
    """CRC-32C bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc_by_its_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283 == naive_crc(b"123456789")


def read_events(path) -> list:
    data, at, events, kind = path.read_bytes(), 0, [], event_class()
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        for start, part in ((at + 8, data[at : at + 8]), (at + 12 + length, body)):
            crc = naive_crc(part)
            assert (
                struct.unpack_from("<I", data, start)[0]
                == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
            )
        events.append(kind.FromString(body))
        at += 16 + length
    return events


def test_events_are_what_the_format_says(made, tmp_path) -> None:
    home, x, profile = made
    (file,) = profile.tensorboard(tmp_path, types=["Gemm"]).iterdir()
    assert "tfevents" in file.name
    first, *rest = read_events(file)
    assert first.file_version == EVENTS_VERSION.decode()
    session = lo.Session(home / "net.onnx")
    gemm = next(n for n in session.model.graph if n.op_type == "Gemm")
    roles = zip(("input", "weight", "bias", "output"), (*gemm.inputs, gemm.outputs[0]), strict=True)
    tags = [event.summary.value[0].tag for event in rest]
    assert tags == [f"{gemm.name}/{attr}/{value.name}" for attr, value in roles]
    (y,) = session.run(None, {"x": x})
    histo = rest[-1].summary.value[0].histo
    assert (histo.min, histo.max, histo.num) == (y.min(), y.max(), y.size)
    np.testing.assert_allclose(
        [histo.sum, histo.sum_squares], [y.sum(dtype=float), (y.astype(float) ** 2).sum()]
    )
    assert len(histo.bucket) == len(histo.bucket_limit)
    assert sum(histo.bucket) == y.size
    np.testing.assert_array_equal(
        histo.bucket[1:], np.histogram(y.astype(np.float64), np.array(histo.bucket_limit))[0]
    )


def test_a_histogram_per_channel(made) -> None:
    home, x, profile = made
    events = read_events(next((home / "p" / "tensorboard").iterdir()))[1:]
    histos = {event.summary.value[0].tag: event.summary.value[0].histo for event in events}
    assert len(histos) == len(events)
    conv = next(e for e in profile.entries if e.op == "Conv" and e.attr == "output")
    ((_, array, _),) = lo.Session(home / "net.onnx").taps({"x": x}, [conv.tensor])
    for channel in range(array.shape[1]):
        histo = histos[f"{conv.module}/output/{conv.tensor}/{channel}"]
        assert (histo.min, histo.max) == (array[:, channel].min(), array[:, channel].max())
    with pytest.raises(lo.ConfigError, match="has no channels"):
        lo.profile(home / "net.onnx", x).tensorboard(home / "q", force_per_channel=True)
