"""Memory of `compare` does not grow with the number of samples."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import resource, sys
import numpy as np
import lingeronnx as lo
from tests.nets import plain, quantized, samples

model = plain()
q = quantized(model)
def feeds():
    rng = np.random.default_rng(0)
    for _ in range(int(sys.argv[1]) // 32):
        yield {"x": rng.standard_normal((32, 3, 12, 12)).astype(np.float32)}
found = lo.compare(model, q, feeds())
print(found.join.samples, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="reads the peak as Linux gives it, in kilobytes"
)
def test_peak_of_compare():
    """64 and 2048 samples: within 10 %."""
    found = []
    for count in (64, 2048):
        words = [sys.executable, "-c", PROGRAM, str(count)]
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        samples, peak = map(int, result.stdout.split())
        assert samples == count
        found.append(peak)
    assert found[1] <= 1.1 * found[0]
