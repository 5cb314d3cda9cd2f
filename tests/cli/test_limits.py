"""Limits of flash and time as the command takes them: widths of weights that keep them, and what is told."""

import re


def test_the_command_says_widths_flash_and_time(here):
    """Files through the command: a limit that is kept, one that nothing reaches, and one of time."""
    words = ("quantize", "tiny.onnx", "--calib", "calib.npz", "--platform", "arcs", "--effort", "fast",
             "--weight-bits", "auto", "--clock", "100")  # fmt: skip
    ends = here.json(*words, "--max-flash", "100000")["search"]["trials"]
    least, most = sorted(trial["flash"] for trial in ends)
    assert least < most
    body = here.json(*words, "--max-flash", str(most - 1))
    assert body["search"]["met"]
    assert body["search"]["weight_bits"] == {"conv": 4, "fc": 4} or set(body["search"]["weight_bits"].values()) == {
        4,
        8,
    }
    assert body["cost"]["weights"] < most
    shown = here.good(*words, "--max-flash", str(least))
    assert "Attempts: " in shown
    assert "bytes of flash at most" in shown
    assert re.search(r"^ +weights +bits: 4 in 2 of 2 layers$", shown, re.MULTILINE)
    page = (here.folder / "tiny_quant_search.html").read_text()
    assert "Bits of weights: 4 in 2 of 2 layers" in page
    assert "<th>flash</th>" in page
    missed = here.json(*words, "--max-flash", str(least - 1))
    assert not missed["search"]["met"]
    assert f"nearest is 'as asked for': {least:,} bytes of flash" in missed["warnings"][0]
    timed = here.json(*words, "--max-ms", "50")
    assert timed["search"]["met"]
    late = here.json(*words, "--max-ms", "0.0001")
    assert "nearest is " in late["warnings"][0]
    assert "a call takes " in late["warnings"][0]
