"""Results appended as they come: what a killed run leaves is read up to its last whole line."""

from __future__ import annotations

import json

import pytest

from lingeronnx.analysis.sensitivity.journal import Journal
from lingeronnx.common.errors import ConfigError
from lingeronnx.common.hashing import hash_concatenation
from tests.each import check_each

HEADER = {"model": hash_concatenation([b"a model"]), "metric": ["L1"]}


def filled(path):
    with Journal(path, HEADER, False) as journal:
        for value in (1, 2):
            journal.add({"part": "ranking", "value": value})
        journal.add({"part": "advice", "value": 3})
    return path


def values(journal, part):
    return [record["value"] for record in journal.records(part)]


def test_goes_on_behind_what_is_there(tmp_path):
    path = filled(tmp_path / "j.jsonl")
    with Journal(path, HEADER, True) as journal:
        assert values(journal, "ranking") == [1, 2]
        assert values(journal, "advice") == [3]
        journal.add({"part": "ranking", "value": 4})
        assert values(journal, "ranking") == [1, 2, 4]
    with Journal(path, HEADER, False) as journal:
        assert values(journal, "ranking") == []


def test_half_a_line_is_cut_off(tmp_path):
    def check(cut):
        path = filled(tmp_path / f"{cut}.jsonl")
        path.write_bytes(path.read_bytes()[:-cut])
        with Journal(path, HEADER, True) as journal:
            assert (values(journal, "ranking"), values(journal, "advice")) == ([1, 2], [])

    check_each(check, range(1, 12))


@pytest.mark.parametrize(
    "other, said",
    [
        ({"model": hash_concatenation([b"b"])}, "results for another model"),
        ({"metric": ["KL"]}, r'metric = \["L1"\]'),
    ],
)
def test_results_of_something_else_are_refused(tmp_path, other, said):
    path = filled(tmp_path / "j.jsonl")
    with pytest.raises(ConfigError, match=said):
        Journal(path, {**HEADER, **other}, True)


def test_damaged(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text("{\n")
    with pytest.raises(ConfigError, match="is damaged; omit --resume"):
        Journal(path, HEADER, True)


def test_without_a_path_nothing_is_kept():
    with Journal(None, HEADER, True) as journal:
        journal.add({"part": "ranking", "value": 1})
        assert values(journal, "ranking") == []


def test_digests_are_of_all_parts_in_order():
    assert (
        hash_concatenation([b"a", b"b"])
        == hash_concatenation([b"ab"])
        != hash_concatenation([b"b", b"a"])
    )
    assert json.dumps(HEADER)
