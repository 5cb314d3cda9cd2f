"""What is done with a case: a command by click's runner, or a call of the Python API; and what came
of it.

ok         a result, or a refusal of click's (exit code 2)
line       one line of ours: LingerOnnxError, exit code 1
traceback  any other exception of a call; a command that ends in one, or in exit code 70
foreign    text of another library reaches the user: a warning, an assertion of C++, "Invoked with"
memory     MemoryError, or more memory than LIMIT
hang, signal: the process does not come back; `process_pool` sees them
outside    a file is written outside the target, or an input changed; `process_pool` sees it
"""

import os
import re
import runpy
import sys
import traceback
import warnings

import numpy as np
import onnx

import lingeronnx as lo
from lingeronnx.api import structure

__all__ = ["API", "BAD", "outcome"]

#: Kinds of outcomes that must not be.
BAD = ("traceback", "foreign", "memory", "hang", "signal", "outside")

#: Text of other libraries, which says nothing to a user.
_FOREIGN = re.compile(
    r"Invoked with|incompatible function arguments|[a-z]Warning:|Traceback|object at "
    r"0x|\.cc:\d|\.cpp:\d|"
    r"\[ONNXRuntimeError\]|errors\.pydantic\.dev|==> Context|Exception ignored|std::|"
    r"\x1b\[1;31m|\[E:onnxruntime|\[W:onnxruntime"
)
_MOST = 1 << 20  # elements of what is fed here: sizes of inputs are the model's
_LINES = 3000  # characters that are kept of a text


def outcome(case):
    """Run `case` in the current folder, which holds its files; return {"kind", "where", "text"}."""
    kept = dict(os.environ)
    os.environ.pop("LINGERONNX_STRICT", None)  # of tests: a user has a line in a report
    os.environ.update(case.environment)
    path, modules = list(sys.path), set(sys.modules)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = _api(case.call[1:]) if case.call[0] == "api" else _command(case.call)
    finally:
        os.environ.clear()
        os.environ.update(kept)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(
                os.getcwd()
            ):  # a case's own
                del sys.modules[name]
    found["text"] = found["text"][-_LINES:]
    mine = [w for w in told if not w.filename.endswith("u.py")]  # users' own functions may warn
    if found["kind"] in ("ok", "line") and mine:
        first = mine[0]
        where = (
            f"{first.category.__name__} {'/'.join(first.filename.split('/')[-2:])}:{first.lineno}"
        )
        return {"kind": "foreign", "where": where, "text": str(first.message)[:_LINES]}
    return found


def _result(kind, text="", where=""):
    return {"kind": kind, "where": where, "text": text}


def _raised(error):
    """Return the outcome of an exception: its type and the last place of ours that it came by."""
    if isinstance(error, lo.LingerOnnxError):
        return _line(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f for f in frames if "/lingeronnx/" in f.filename or "/simulator/" in f.filename
    ] or list(frames)[-1:]
    place = "/".join(ours[-1].filename.split("/")[-2:]) + f":{ours[-1].name}" if ours else "?"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as worse:  # an exception of a user's whose text raises
        text = f"an exception without a text: {type(worse).__name__}"
    kind = "memory" if isinstance(error, MemoryError) else "traceback"
    return _result(kind, text, f"{type(error).__name__} {place}")


def _line(text):
    if "\n" in text or not text.strip():
        return _result("traceback", text, "more than one line")
    return (
        _result("foreign", text, _FOREIGN.search(text)[0])
        if _FOREIGN.search(text)
        else _result("line", text)
    )


def _command(words):
    from click.testing import CliRunner

    from lingeronnx.cli import main

    done = CliRunner().invoke(main, words)
    if done.exit_code == 70:
        return _told_bug(done.stderr)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return _raised(done.exception)
    if found := _FOREIGN.search(done.output):
        return _result("foreign", done.output, found[0])
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.exit_code not in (0, 1, 2):
        return _result("traceback", done.output, f"exit code {done.exit_code}")
    return (
        _result("line", lines[-1]) if done.exit_code == 1 and lines else _result("ok", done.output)
    )


def _told_bug(text):
    """Return the outcome of a command that printed a traceback itself."""
    places = re.findall(
        r'File ".*?((?:lingeronnx|simulator)/[\w/]+\.py)", line \d+, in (\S+)', text
    )
    place = f"{'/'.join(places[-1][0].split('/')[-2:])}:{places[-1][1]}" if places else "?"
    errors = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", text, re.MULTILINE)
    errors = [
        e
        for e in errors
        if "Error" in e or "Exception" in e or "Failure" in e or "Fail" in e or e[0].isupper()
    ]
    kind = "memory" if "MemoryError" in errors else "traceback"
    return _result(kind, text, f"{(errors or ['?'])[-1].split('.')[-1]} {place}")


# ---- calls of the API ----------------------------------------------------------------------------------------------


def _api(words):
    try:
        API[words[0]](*words[1:])
    except BaseException as error:
        return _raised(error)
    return _result("ok")


def _feeds(session):
    """Return random numbers for a session, for sizes that a test can hold."""
    rng, feeds = np.random.default_rng(0), {}
    for value in session.get_inputs():
        shape = [2 if d is None else d for d in value.shape]
        if any(d < 0 for d in shape) or int(np.prod([float(d) for d in shape])) > _MOST:
            return None
        kind = value.type[7:-1]
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        try:
            feeds[value.name] = rng.integers(-3, 4, shape).astype(kind)
        except TypeError:
            feeds[value.name] = np.zeros(shape, np.float32)
    return feeds


def _session(*_):
    session = lo.Session("m.onnx")
    feeds = _feeds(session)
    if feeds is not None:
        session.run(None, feeds)


def _taps(*_):
    session = lo.Session("m.onnx")
    feeds = _feeds(session)
    if feeds is not None:
        list(session.taps(feeds))


def _quantize(platform):
    lo.quantize("m.onnx", "d.npz", platform=platform, effort="fast")


def _proto(platform):
    try:
        model = onnx.load("m.onnx", load_external_data=False)
    except Exception:
        return  # no model that could be given
    lo.quantize(model, "d.npz", platform=platform, effort="fast")


def _check_model(*_):
    lo.check_model("m.onnx")


def _graph(*_):
    lo.check("m.onnx")
    structure("m.onnx")


def _structure(*_):
    structure("m.onnx", calib="d.npz")


def _reference(*_):
    try:
        lo.reference_ops()
        model = onnx.load("m.onnx", load_external_data=False)
    except Exception:
        return  # no model that could be given
    lo.check_model(model)


def _read_plan(*_):
    lo.read_plan("p.json")


def _function(name):
    return runpy.run_path("u.py")[name]


def _given(use):
    """Return the call `use` of a user's function, where the file has one at all."""

    def called(name):
        try:
            given = _function(name)
        except BaseException:
            return
        use(given)

    return called


API = {
    "session": _session,
    "taps": _taps,
    "quantize": _quantize,
    "proto": _proto,
    "check_model": _check_model,
    "graph": _graph,
    "structure": _structure,
    "reference": _reference,
    "read_plan": _read_plan,
    "path": lo.Session,
    "data": lambda text: lo.evaluate("q.onnx", text, metric="top1"),
    "calib": _given(lambda f: lo.quantize("m.onnx", f, effort="fast")),
    "metric": _given(lambda f: lo.evaluate("q.onnx", "d.npz", metric=f)),
    "feeds": _given(lambda f: lo.Session("q.onnx").run(None, f)),
}
