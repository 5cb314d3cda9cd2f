"""Hostile input gets a result or one line: listed cases, every input that ever failed, and some
random ones.
"""

import time

import pytest

from tests.robustness import calls, process_pool
from tests.robustness.__main__ import CORPUS
from tests.robustness.case import Case
from tests.robustness.case_generators import KINDS, SPLICED, make
from tests.robustness.handwritten_cases import LISTED

RANDOM = 3  # seeds of each kind

#: In a process of their own: they end the process, ask for all memory, or do not come back where we are wrong.
APART = {
    **{
        f"corpus {path.stem}": lambda path=path: Case.read(path)
        for path in sorted(CORPUS.glob("*.zip"))
    },
    **{
        f"{kind} {seed}": lambda kind=kind, seed=seed: make(kind, seed)
        for kind in (*KINDS, *SPLICED)
        for seed in range(RANDOM)
    },
}


def bad(found):
    """Return what is wrong with an outcome, an empty text where nothing is."""
    return (
        f"{found['kind']} {found['where']}\n{found['text']}" if found["kind"] in calls.BAD else ""
    )


@pytest.mark.sweep
@pytest.mark.parametrize("name", LISTED)
def test_listed(name, tmp_path, monkeypatch):
    """Cases that people thought of."""
    LISTED[name].write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert not bad(calls.outcome(LISTED[name]))


@pytest.mark.slow
def test_apart(tmp_path, monkeypatch):
    """Every input that ever failed, and three seeds of each kind of input in both grammars."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failed, done = {}, []

    def ended(name, found):
        done.append(name)
        if told := bad(found):
            failed[name] = told

    process_pool.run(list(APART.items()), 1, ended, nice=0)
    assert not failed, "\n\n".join(f"{name}: {told}" for name, told in failed.items())
    assert sorted(done) == sorted(APART)


def test_the_judge_sees_what_is_wrong(tmp_path, monkeypatch):
    """A traceback, foreign text and two lines are failures; a refusal of ours is none."""
    monkeypatch.chdir(tmp_path)
    kinds = {
        "traceback": lambda: 1 / 0,
        "memory": lambda: bytes(1 << 62),
        "foreign": lambda: _refuse("call failed; Invoked with: 3"),
        "line": lambda: _refuse("the file is damaged"),
    }
    for kind, call in kinds.items():
        monkeypatch.setitem(calls.API, "session", call)
        assert calls.outcome(Case(["api", "session"]))["kind"] == kind


def _refuse(text):
    raise calls.lo.ModelError(text)


def test_a_case_survives_its_file(tmp_path):
    """What `packed` writes, `read` reads."""
    case = make("functions", 1)
    (tmp_path / "a.zip").write_bytes(case.packed())
    assert Case.read(tmp_path / "a.zip") == case


@pytest.mark.parametrize("seed", range(7, 11))
def test_a_seed_is_a_case(seed, monkeypatch):
    """The same case for the same kind and seed, of any kind, at any time."""
    first = {kind: make(kind, seed).packed() for kind in (*KINDS, *SPLICED)}
    present = time.time()
    monkeypatch.setattr(time, "time", lambda: present + 1000)
    for kind, packed in first.items():
        assert make(kind, seed).packed() == packed, kind
