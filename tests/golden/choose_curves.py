"""Copy a sample of the training library's activation tables into `curves.npz`.

python tests/golden/choose_curves.py FOLDER        # FOLDER holds venus_q11_q15.npz and the other
dumps
"""

import sys
from pathlib import Path

import numpy as np


def choose(source: Path, target: Path) -> int:
    """Write the sample to `target`; return how many arrays."""
    found: dict[str, np.ndarray] = dict(_whole(source, "venus_q11_out_of_range"))
    for name, step, keys in (
        ("venus_q11_q15", 61, ("x", "sigmoid_q15", "tanh_q15")),
        ("q27_sampled", 17, ("x", "arcs_sigmoid", "arcs_tanh", "venusa_sigmoid", "venusa_tanh")),
        ("venusa_gelu_swish", 17, ("x", "gelu_q27", "swish_q27")),
    ):
        arrays = np.load(source / f"{name}.npz")
        found |= {f"{name}/{key}": arrays[key][::step] for key in keys}
    for name, step, exponents in (
        ("int8_grid", 3, (0, 4, 11, 12)),
        ("int16_grid", 257, (8, 12)),
        ("venusa_gelu_swish", 3, (0, 4, 11, 12)),
    ):
        arrays = np.load(source / f"{name}.npz")
        chosen = [key for key in arrays.files for q in exponents if f"k{q}_" in key]
        found |= {f"{name}/{key}": arrays[key][::step] for key in chosen}
        if name != "venusa_gelu_swish":
            found[f"{name}/x"] = arrays["x"][::step]
    rows = np.load(source / "softmax_q25_q15.npz")
    found |= {
        f"softmax_q25_q15/{key}": rows[key][:8]
        for key in rows.files
        if not key.startswith(("L100", "L1_"))
    }
    norm = np.load(source / "layernorm_kernel.npz")
    found |= {
        f"layernorm_kernel/{key}": norm[key]
        for key in norm.files
        if key.startswith(("c0", "c1", "c2"))
    }
    found |= {
        f"layernorm_kernel/{key}": norm[key][::17] for key in norm.files if key.startswith("rsqrt")
    }
    np.savez_compressed(target, **found)
    return len(found)


def _whole(source: Path, name: str) -> dict[str, np.ndarray]:
    """Return all arrays of one dump."""
    arrays = np.load(source / f"{name}.npz")
    return {f"{name}/{key}": arrays[key] for key in arrays.files}


if __name__ == "__main__":
    print(choose(Path(sys.argv[1]), Path(__file__).parent / "curves.npz"), "arrays")
