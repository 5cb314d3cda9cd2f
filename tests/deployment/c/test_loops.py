"""Equal steps in a row as a loop."""

import shutil
import subprocess

import numpy as np
import pytest

from lingeronnx.deployment.c_program.call_writer import roll_loops


def run(tmp_path, steps, name):
    """Return what a program prints that runs the steps."""
    lines = roll_loops(steps)
    text = "\n".join(
        [
            "#include <stdint.h>",
            "#include <stdio.h>",
            '#define AT(n) printf("%d ", (int)(n))',
            '#define SHOW(a, b) printf("(%d %d) ", a, b)',
            "int main(void)",
            "{",
            "    int step;",
            "    (void)step;",
            *lines,
            "    return 0;",
            "}",
            "",
        ]
    )
    (tmp_path / f"{name}.c").write_text(text)
    words = [
        "cc",
        "-std=c99",
        "-Wall",
        "-Werror",
        "-o",
        str(tmp_path / name),
        str(tmp_path / f"{name}.c"),
    ]
    subprocess.run(words, check=True)
    return subprocess.run(
        [str(tmp_path / name)], capture_output=True, text=True, check=True
    ).stdout, lines


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("seed", range(4))
def test_loops_do_what_the_steps_do(seed, tmp_path):
    """Rolled or not, the same places are visited in the same order."""
    rng = np.random.default_rng(seed)
    steps, want = [], []
    kinds = [rng.integers(0, 3, rng.integers(1, 3)) for _ in range(2)]
    order = [k for block in rng.integers(0, 2, 9) for k in kinds[block]]
    for number, kind in enumerate(order):
        places = rng.integers(0, 4, kind + 1)
        steps.append(
            (f"s{number}", [f"    SHOW({number}, {kind});", *(f"    AT({p});" for p in places)])
        )
        want.append(f"({number} {kind}) " + "".join(f"{p} " for p in places))
    assert run(tmp_path, steps, "steps")[0] == "".join(want)


def test_what_is_worth_a_loop():
    """Three in a row are, with the shortest period; what is the same in all turns stays a
    number.
    """
    step = [[f"    SHOW({k}, 0);", f"    AT({16 * k});", "    AT(7);"] for k in range(6)]
    text = "\n".join(roll_loops([(f"s{k}", lines) for k, lines in enumerate(step)]))
    assert text.count("AT(") == 2
    assert "step < 6" in text
    assert "{80}," in text
    assert "AT(7)" in text
    assert "for" not in "\n".join(
        roll_loops([(f"s{k}", lines) for k, lines in enumerate(step[:2])])
    )
