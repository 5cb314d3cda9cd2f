"""The table of measured places is what the measured rows show.

`python -m tests.targets.luna.packer.test_measured` prints it.
"""

import json
from collections import defaultdict
from pathlib import Path

import onnx
import pytest

from lingeronnx.luna.evaluation import prepare_graph
from lingeronnx.luna.packer.memory.plan import resolve_placements
from lingeronnx.luna.packer.memory.work_areas import PlacedStep
from lingeronnx.luna.packer.options import parse_packer_arguments
from lingeronnx.luna.packer.verified_placements import VERIFIED_PLACEMENTS, encode_placement
from lingeronnx.luna.packer_profile import get_packer_profile
from lingeronnx.targets import get_target

BESIDE = Path(__file__).resolve().parents[5] / "shared" / "golden"
WHOLE = (BESIDE / "packer" / "index.json").is_file()


def rows():
    """Yield (graph, platform, arguments) of what was measured right, 4-bit weights said as 8 bits
    included.
    """
    for folder in (
        BESIDE / "packer",
        BESIDE / "packer" / "more",
        BESIDE / "tiles",
        BESIDE / "executor",
    ):
        for row in json.loads((folder / "index.json").read_text()):
            if row["packs"] and row["runs"] and row["equal_to_simulator"]:
                yield onnx.load(folder / row["file"]), row["platform"], row["arguments"]
    for row in json.loads((BESIDE / "four_bits" / "index.json").read_text()):
        if row.get("packs_8") and row["runs_8"] and row["differing_8"] == 0:
            model = onnx.load(BESIDE / "four_bits" / row["file"])
            for attribute in (a for node in model.graph.node for a in node.attribute):
                if attribute.name == "parameter_bits":
                    attribute.i = 8
            yield model, row["platform"], row["arguments"]


def measured():
    """Return {chip: {operator: places}} of the rows."""
    found = defaultdict(lambda: defaultdict(set))
    for model, chip, arguments in rows():
        target, options = get_target(chip), parse_packer_arguments(arguments)
        prepared = prepare_graph(model, target, options)
        net = prepared.net
        if net is None:
            continue
        places = resolve_placements(prepared.facts, options)
        for step in net.steps:
            text = encode_placement(PlacedStep.from_step(net, step, places))
            if "p" in text:
                found[get_packer_profile(target).work_area_table][step.op].add(text)
    return {
        chip: {op: " ".join(sorted(texts)) for op, texts in sorted(ops.items())}
        for chip, ops in found.items()
    }


@pytest.mark.slow
@pytest.mark.skipif(not WHOLE, reason="the measured rows are not part of the project")
def test_the_table_is_what_was_measured():
    """To the last place: nothing is believed, nothing that was measured is left out."""
    assert {
        chip: {op: " ".join(sorted(t.split())) for op, t in ops.items()}
        for chip, ops in VERIFIED_PLACEMENTS.items()
    } == measured()


if __name__ == "__main__":
    for chip, operators in measured().items():
        print(f'        "{chip}": {{')
        for operator, texts in operators.items():
            print(f'            "{operator}": "{texts}",')
        print("        },")
