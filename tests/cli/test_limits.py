"""Limits of flash and time as the command takes them: widths of weights that keep them, and what is
told.
"""

import re


def test_the_command_says_widths_flash_and_time(here):
    """Files through the command: a limit that is kept, one that nothing reaches, and one of
    time.
    """
    words = (
        "quantize",
        "tiny.onnx",
        "--calib",
        "calib.npz",
        "--platform",
        "arcs",
        "--effort",
        "fast",
        "--weight-bits",
        "auto",
        "--clock",
        "100",
    )
    ends = here.json(*words, "--max-flash", "100000")["search"]["trials"]
    least, most = sorted(trial["flash"] for trial in ends)
    assert least < most
    body = here.json(*words, "--max-flash", str(most - 1))
    assert body["search"]["met"]
    assert body["search"]["weight_bits"] == {"conv": 4, "fc": 4} or set(
        body["search"]["weight_bits"].values()
    ) == {
        4,
        8,
    }
    assert body["cost"]["weights"] < most
    shown = here.run_ok(*words, "--max-flash", str(least))
    assert "Attempts: " in shown
    assert "bytes of flash for package constants at most" in shown
    assert "over the limit" in shown
    assert re.search(r"^ +weights +bits: 4 in 2 of 2 layers$", shown, re.MULTILINE)
    page = (here.folder / "tiny_quant_search.html").read_text()
    assert "<b>Bits of weights:</b> 4 in 2 of 2 layers" in page
    assert ">flash</th>" in page
    missed = here.json(*words, "--max-flash", str(least - 1))
    assert not missed["search"]["met"]
    closest = f"closest attempt is 'as requested': {least:,} bytes of flash for package constants"
    assert closest in missed["warnings"][0]
    timed = here.json(*words, "--max-ms", "50")
    assert timed["search"]["met"]
    late = here.json(*words, "--max-ms", "0.0001")
    assert "closest attempt is " in late["warnings"][0]
    assert "a call takes " in late["warnings"][0]


def test_comparing_and_ranking_show_widths(here):
    """compare's table, csv and page, and the table of sensitivity; with 8 bits everywhere there is
    no such column.
    """
    words = (
        "--calib",
        "calib.npz",
        "--platform",
        "arcs",
        "--effort",
        "fast",
        "--override",
        "fc=weight_bits:4",
    )
    here.run_ok("quantize", "tiny.onnx", *words)
    here.run_ok("compare", "tiny.onnx", "tiny_quant.onnx", "--data", "calib.npz", "-o", "compared")
    table = (here.folder / "compared" / "compare_per_layer_out.csv").read_text().splitlines()
    assert table[0].endswith(",weight_bits")
    assert {line.rsplit(",", 1)[1] for line in table[1:]} == {"8", "4", ""}
    assert (
        "weight_bits"
        in (here.folder / "compared" / "compare_per_layer_out.txt").read_text().splitlines()[0]
    )
    assert '"wbits":4' in (here.folder / "compared" / "profiler.html").read_text()
    here.run_ok("sensitivity", "tiny.onnx", *words, "-o", "ranked")
    ranked = (here.folder / "ranked" / "sensitive_ops.txt").read_text().splitlines()
    assert ranked[0].endswith("weight_bits")
    assert {line.split()[0]: line.split()[-1] for line in ranked[1:4]} == {
        "conv": "8",
        "fc": "4",
        "x": "-",
    }
    here.run_ok(
        "quantize", "tiny.onnx", "--calib", "calib.npz", "--platform", "arcs", "--effort", "fast"
    )
    here.run_ok("compare", "tiny.onnx", "tiny_quant.onnx", "--data", "calib.npz", "-o", "whole")
    assert "weight_bits" not in (here.folder / "whole" / "compare_per_layer_out.csv").read_text()
