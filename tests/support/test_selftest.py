"""The self test finds a kernel that computes something else."""

import numpy as np
import pytest

from lingeronnx.cli.support import self_test
from lingeronnx.operators.references import reference_ops


@pytest.mark.slow
def test_all_equal_here():
    tested = self_test.run_self_test()
    assert not tested.differences
    assert tested.integers > 10_000


def test_one_wrong_integer_is_found(monkeypatch):
    def wrong(target):
        classes = reference_ops(target)
        (add,) = (
            each for each in classes if each.__name__ == "iqAdd" and each.op_domain == "thinker"
        )

        class Off(add):
            op_domain = add.op_domain

            def _run(self, *values, **attributes):
                (sums,) = super()._run(*values, **attributes)
                sums = np.array(sums)
                sums.flat[0] ^= 1
                return (sums,)

        Off.__name__ = add.__name__
        return [*(each for each in classes if each is not add), Off]

    monkeypatch.setattr(self_test, "reference_ops", wrong)
    tested = self_test.run_self_test()
    assert tested.differences
    assert "differ from the plain classes" in str(tested.differences[0])
