"""One test for many cases: every case is checked, and the failing ones are listed."""

from collections.abc import Callable, Iterable

import pytest

__all__ = ["check_each"]


def check_each(check: Callable[..., None], cases: Iterable[object]) -> None:
    """Call `check(case)` for each case; fail with a line for every case that fails.

    A tuple is passed as several arguments. An exception of any kind is a failure of its case.
    """
    failures = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        try:
            check(*arguments)
        except Exception as error:
            label = ", ".join(map(str, arguments))
            failures.append(f"{label}: {type(error).__name__}: {error}")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
