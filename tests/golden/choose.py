"""Copy the small core of a set of measured vectors into this folder, with a reduced index.

python tests/golden/choose.py FOLDER        # FOLDER holds index.json, <case>.onnx and <case>.npz
"""

import json
import shutil
import sys
from pathlib import Path

PREFIX = "venus_"
NAMES = (
    "conv2d_1x1", "conv2d_1x1_nobias", "conv2d_1x5", "conv2d_3x3_nobias", "conv2d_3x3_p1", "conv2d_3x3_s12",
    "conv2d_3x3_s2_asym", "conv2d_3x3_s4", "conv2d_5x5_s2", "conv2d_acc33_1x1", "conv2d_asym0011_dw",
    "conv2d_asym1001", "conv2d_batch2", "conv2d_batch2_dw", "conv2d_big_shift", "conv2d_dw3x3", "conv2d_dw5x5_s2",
    "conv2d_group2", "conv2d_qom1", "conv2d_qw16", "conv2d_qxm3_quant", "conv2d_s21_dw", "conv2d_sat",
    "conv2d_shift0", "conv2d_ties_s1", "conv2d_ties_s3", "conv2d_relu", "name_QConv2d_thinker", "conv1d_k1",
    "conv1d_k3", "conv1d_k5_s2", "conv1d_nobias", "linear_2d", "linear_3d", "linear_nobias", "linear_o16",
    "linear_o32s", "linear_sat32", "linear_ties", "linear_w4", "avgpool_2x2", "avgpool_2x2_qo3", "avgpool_3x3",
    "avgpool_3x3_pad", "avgpool_7x7_full", "avgpool_area_12x12_8", "avgpool_g8x8_c64", "avgpool_ties_2x2",
    "avgpool_ties_2x3", "avgpool_ties_2x5", "maxpool_2x2", "maxpool_3x3p1", "maxpool_3x3p1_neg", "maxpool_allneg",
    "batchnorm", "iqadd_both", "iqadd_grid", "iqadd_qm1", "iqadd_same", "iqadd_xs", "iqmul_basic", "iqmul_chan",
    "iqmul_grid", "iqmul_s0", "iqcat_ax2", "iqcat_axm1", "iqcat_diff", "iqcat_up", "requant_8to16", "requant_8to32",
    "requant_q4_q2", "requant_q4_q6", "quant_ties_q0", "quant_ties_q7", "relu", "relu16", "flatten_a", "reshape_0",
    "reshape_1", "reshape_3", "squeeze_a", "unsqueeze_a", "transpose_3d0", "transpose_4d0", "transpose_4d4",
    "iqsigmoid_q8", "iqsigmoid_q11", "iqsigmoid_q13", "iqtanh_q8", "iqtanh_q11", "iqtanh_q13", "layernorm_last",
    "layernorm_p3", "layernorm_const32", "net_res_0", "net_mbv2_0", "net_dscnn_0", "net_concat_0", "net_cnn3_0",
    "net_qm1_0",
)  # fmt: skip


def choose(source: Path, target: Path) -> int:
    """Copy the cases named above from `source` to `target`; return how many."""
    index = json.loads((source / "index.json").read_text())
    wanted = {PREFIX + name for name in NAMES}
    index["cases"] = [case for case in index["cases"] if case["name"] in wanted]
    missing = wanted - {case["name"] for case in index["cases"]}
    if missing:
        raise SystemExit(f"{source} has no case {', '.join(sorted(missing))}")
    del index["tables"]
    target.mkdir(exist_ok=True)
    for case in index["cases"]:
        for suffix in (".onnx", ".npz"):
            shutil.copyfile(source / (case["name"] + suffix), target / (case["name"] + suffix))
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return len(index["cases"])


if __name__ == "__main__":
    print(choose(Path(sys.argv[1]), Path(__file__).parent / "luna"), "cases")
