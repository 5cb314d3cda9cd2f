"""User functions that raise anything: one line with the type, never the end of the process."""

import asyncio

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import format_exception, wrap_user_errors
from lingeronnx.runtime.data.sources import open_items
from lingeronnx.runtime.metrics import call_user_function
from tests.robustness.case_generators import GOOD


class Unprintable(BaseException):
    """An exception whose text raises another one."""

    def __str__(self):
        raise GeneratorExit


RAISED = [
    GeneratorExit,
    SystemExit,
    asyncio.CancelledError,
    StopIteration,
    StopAsyncIteration,
    RecursionError,
    Unprintable,
    BaseException,
    type("Other", (BaseException,), {}),
]
_FEED = {"x": np.zeros((1, 3, 8, 8), np.float32)}


def raise_it(error):
    raise error


def source_of(error, place):
    """Return data that raise `error`: the function, its iteration, or an item."""

    class Item:
        def __array__(self, *args, **options):
            raise error

    class Dataset:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise error

    def generator():
        yield _FEED, np.zeros(1, np.int64)
        raise error

    class Iterator:
        def __iter__(self):
            return self

        def __next__(self):
            raise error

    sources = {
        "function": lambda: raise_it(error),
        "generator": generator,
        "iterator": Iterator(),
        "dataset": Dataset(),
        "item": [{"x": Item()}],
    }
    return sources[place]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: error.__name__)
@pytest.mark.parametrize("place", ["function", "generator", "iterator", "dataset", "item"])
def test_data(error, place):
    """The data are read, and the error becomes a DataError; StopIteration ends an iteration."""
    source = source_of(error, place)
    with pytest.raises(lo.DataError) as caught:
        lo.evaluate(GOOD / "conv_venus.onnx", source, metric="top1")
    if not (error is StopIteration and place == "iterator"):
        assert error.__name__ in str(caught.value) or "StopIteration" in str(caught.value)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: error.__name__)
def test_metrics(error):
    """A metric that raises."""
    with pytest.raises(lo.ConfigError, match=f"the metric function failed .{error.__name__}"):
        call_user_function("the metric function", lambda: raise_it(error))


def test_ctrl_c_is_not_converted():
    """A KeyboardInterrupt is the user's."""
    with pytest.raises(KeyboardInterrupt), wrap_user_errors("it failed", lo.DataError):
        raise KeyboardInterrupt


def test_closing_an_iteration_is_no_error():
    """An iteration that nobody continues ends quietly, and so does the user's generator."""
    ended = []

    def generator():
        try:
            yield _FEED
            yield _FEED
        finally:
            ended.append(True)

    items = open_items(generator, "data").iter_items()
    next(items)
    items.close()
    assert ended == [True]


def test_an_exception_without_a_text():
    """Its type is enough."""
    assert format_exception(Unprintable()) == "Unprintable"
