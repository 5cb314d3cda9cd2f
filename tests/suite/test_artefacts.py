"""Shared artefacts are what building them anew gives, belong to the caller, and are built once."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import artefacts, nets


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty folder of artefacts for this test alone."""
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path / "artefacts"))
    artefacts.build_folder.cache_clear()
    yield tmp_path / "artefacts"
    artefacts.build_folder.cache_clear()


def read_files(folder):
    """Read every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_three_artefacts_are_what_building_them_anew_gives(own_folder, tmp_path):
    """A quantized model, a deployed folder and a report page, byte for byte."""
    model, options = nets.plain(), {"effort": "fast"}
    data = nets.samples(model)
    shared = artefacts.quantized(model, "venus", **options)  # built
    shared = artefacts.quantized(model, "venus", **options)  # and loaded
    fresh = lo.quantize(model, data, platform="venus", **options)
    assert ir.to_bytes(shared.graph) == ir.to_bytes(fresh.graph)
    assert shared.plan.to_json() == fresh.plan.to_json()
    assert shared.report.to_dict() == fresh.report.to_dict()

    def deploy(folder):
        lo.deploy(fresh.graph, folder / "board", data=data, samples=1)

    deployed = artefacts.folder_of("board", (model, options), deploy)
    deploy(tmp_path)
    assert read_files(deployed / "board") == read_files(tmp_path / "board")

    page = artefacts.cached("page", (model, options), shared._repr_html_)
    assert page == fresh._repr_html_()


def test_each_caller_gets_a_copy(own_folder, tmp_path):
    first, second = (artefacts.cached("array", 1, lambda: np.zeros(3)) for _ in range(2))
    first += 1
    assert not second.any()

    def fill(folder):
        (folder / "a.txt").write_text("built")

    copy = artefacts.folder_of("folder", 1, fill, tmp_path / "copy")
    (copy / "a.txt").write_text("changed")
    assert (artefacts.folder_of("folder", 1, fill) / "a.txt").read_text() == "built"


def test_the_key_is_the_content(own_folder):
    """Models and arrays count by content, options by value; a function cannot be a key."""
    built = []

    def value_of(parts):
        return artefacts.cached("value", parts, lambda: built.append(parts) or len(built))

    assert value_of((nets.plain(), {"bits": 8})) == value_of((nets.plain(), {"bits": 8})) == 1
    assert value_of((nets.plain(), {"bits": 16})) == 2
    assert value_of(np.arange(3)) == 3
    assert value_of(np.arange(3, dtype=np.int32)) == 4
    with pytest.raises(TypeError, match="cannot be part of the key"):
        value_of(print)


def test_an_error_is_not_kept(own_folder):
    with pytest.raises(ZeroDivisionError):
        artefacts.cached("value", 1, lambda: 1 // 0)
    assert artefacts.cached("value", 1, lambda: 7) == 7


def test_two_that_ask_at_once_build_it_once(own_folder):
    """The lock belongs to the opened file: threads wait for each other as processes do."""
    built = []

    def build():
        built.append(1)
        time.sleep(0.1)
        return 7

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: artefacts.cached("slow", 1, build), range(2))) == [7, 7]
    assert built == [1]
