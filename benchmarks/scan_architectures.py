"""First attempts with torchvision's and timm's classifiers and segmenters, as both of torch's exporters write them.

    pip install --target LIBS --no-deps torchvision timm huggingface_hub safetensors
    PYTHONPATH=LIBS python benchmarks/scan_architectures.py FOLDER [--only NAME ...] [--exporters
    dynamo torchscript]
        [--platforms generic venus] [--timeout SECONDS]

Each net is made with random weights, its batch norms are settled on a few pictures, and
`torch.onnx.export` writes it into FOLDER with a batch of one. Then come the attempts of
first_attempts.py: `quantize` with defaults, and onnxruntime's quantize_static, each in a process of
its own; SQNR on pictures that calibration did not see. Pictures are pieces of the two photographs
that scikit-learn brings. FOLDER/results.jsonl keeps every attempt, and a run that was interrupted
goes on. The exit code is 1 where an attempt failed otherwise than with one line.

Weights are random, so parameters that begin as one number (the scales of norms and of whole
branches, often 0 or 1e-6) are drawn as well: otherwise some nets would compute nothing. None of
these nets needs torchvision's compiled operators; where these do not load (they are built for one
build of torch), their names are declared, and that is all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PEER = "onnxruntime"
EXPORTERS = ("dynamo", "torchscript")
_CALIB, _TEST, _SETTLE = 16, 8, 8  # pictures

#: architecture -> size of the picture, and what else its constructor is told; small ones first. "tv" is torchvision.
NETS: dict[str, tuple[int, Mapping[str, Any]]] = {
    "tv.mobilenet_v2": (96, {}),
    "tv.mobilenet_v3_small": (96, {}),
    "tv.squeezenet1_1": (96, {}),
    "tv.shufflenet_v2_x0_5": (96, {}),
    "tv.mnasnet0_5": (96, {}),
    "tv.resnet18": (96, {}),
    "tv.lraspp_mobilenet_v3_large": (96, {}),
    "timm.lcnet_050": (96, {}),
    "timm.tinynet_e": (106, {}),
    "timm.ghostnet_100": (96, {}),
    "timm.hardcorenas_a": (96, {}),
    "timm.fbnetc_100": (96, {}),
    "timm.mobilenetv4_conv_small": (96, {}),
    "timm.repghostnet_050": (96, {}),
    "timm.repvgg_a0": (96, {}),
    "timm.mobileone_s0": (96, {}),
    "timm.mixnet_s": (96, {}),
    "timm.rexnet_100": (96, {}),
    "timm.dla46_c": (96, {}),
    "timm.gernet_s": (96, {}),
    "timm.ese_vovnet19b_dw": (96, {}),
    "timm.hgnetv2_b0": (96, {}),
    "timm.starnet_s1": (96, {}),
    "timm.repvit_m0_9": (96, {}),
    "timm.edgenext_xx_small": (96, {}),
    "timm.mobilevit_xxs": (128, {}),
    "timm.mobilevitv2_050": (128, {}),
    "timm.fastvit_t8": (128, {}),
    "timm.levit_128s": (224, {}),
    "timm.efficientvit_b0": (96, {}),
    "timm.vit_tiny_patch16_224": (96, {"img_size": 96}),
    "timm.deit_tiny_patch16_224": (96, {"img_size": 96}),
    "timm.xcit_nano_12_p16_224": (96, {}),
    "timm.convnextv2_atto": (96, {}),
    "timm.inception_next_atto": (96, {}),
    "timm.pvt_v2_b0": (96, {}),
    "timm.poolformer_s12": (96, {}),
    "timm.visformer_tiny": (96, {"img_size": 96}),
    "timm.efficientformer_l1": (224, {}),
    "timm.mixer_s32_224": (224, {}),
    "timm.pit_ti_224": (224, {}),
    "timm.cait_xxs24_224": (96, {"img_size": 96}),
    "timm.coat_lite_tiny": (96, {"img_size": 96}),
    "timm.resnest14d": (96, {}),
    "timm.skresnet18": (96, {}),
    "timm.hrnet_w18_small": (96, {}),
    "timm.dpn68": (96, {}),
    "timm.res2net50_14w_8s": (96, {}),
    "timm.nf_regnet_b0": (96, {}),
    "timm.cs3darknet_s": (96, {}),
    "timm.maxvit_pico_rw_256": (128, {"img_size": 128}),
    "timm.mambaout_femto": (96, {}),
    "timm.gcvit_xxtiny": (224, {}),
    "timm.botnet26t_256": (256, {}),
    "tv.regnet_y_400mf": (96, {}),
    "tv.efficientnet_b0": (96, {}),
    "tv.mobilenet_v3_large": (96, {}),
    "tv.googlenet": (96, {"init_weights": True, "aux_logits": False}),
    "tv.densenet121": (96, {}),
    "tv.resnet50": (96, {}),
    "tv.resnext50_32x4d": (96, {}),
    "tv.inception_v3": (96, {"init_weights": True, "aux_logits": False}),
    "tv.convnext_tiny": (96, {}),
    "tv.swin_t": (96, {}),
    "tv.swin_v2_t": (96, {}),
    "tv.efficientnet_v2_s": (96, {}),
    "tv.deeplabv3_mobilenet_v3_large": (96, {}),
    "tv.fcn_resnet50": (64, {}),
    "timm.eca_nfnet_l0": (96, {}),
    "tv.alexnet": (96, {}),
    "tv.vgg11_bn": (64, {}),
    "tv.vit_b_16": (64, {"image_size": 64}),
}


@cache
def _photographs() -> list[np.ndarray]:
    from sklearn.datasets import load_sample_images

    return [image.astype(np.float32) / 127.5 - 1 for image in load_sample_images().images]


def make_images(size: int, count: int, seed: int) -> np.ndarray:
    """Return pieces of photographs, [count, 3, size, size] float32, -1 to 1.

    Half of them mirrored.
    """
    rng, found = np.random.default_rng(seed), []
    for i in range(count):
        whole = _photographs()[i % 2]
        side = int(rng.integers(size, 400))
        top, left = (int(rng.integers(limit - side + 1)) for limit in whole.shape[:2])
        places = np.arange(size) * side // size
        piece = whole[top + places][:, left + places]
        found.append((piece[:, ::-1] if rng.random() < 0.5 else piece).transpose(2, 0, 1))
    return np.stack(found)


def _feeds(size: int, count: int, seed: int) -> list[dict[str, np.ndarray]]:
    return [{"image": picture[None]} for picture in make_images(size, count, seed)]


#: What default_quantization.py reads of a file with loaders: name -> (file, calibration, test, states)
MODELS = {
    f"{net}-{exporter}": (
        f"{net}-{exporter}.onnx",
        partial(_feeds, size, _CALIB, 0),
        partial(_feeds, size, _TEST, 1),
        {},
    )
    for net, (size, _) in NETS.items()
    for exporter in EXPORTERS
}
FIXED: dict[str, dict[str, np.ndarray]] = {}


# ---- making a net --------------------------------------------------------------------------------------------------


def _made(net: str) -> Any:
    """Return the module of an architecture with its own random weights."""
    import torch

    declared = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision
    except RuntimeError:  # compiled for another build of torch
        for operator in ("nms", "qnms"):
            declared.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision
    home, name = net.split(".", 1)
    told = dict(NETS[net][1])
    if home == "timm":
        import timm

        return timm.create_model(name, pretrained=False, **told)
    segments = any(part in name for part in ("deeplab", "fcn", "lraspp"))
    return torchvision.models.get_model(
        name, weights=None, **told, **({"weights_backbone": None} if segments else {})
    )


def _randomize_constants(module: Any) -> None:
    """Draw the parameters that begin as one number, such as the scales of norms and of branches."""
    import torch

    with torch.no_grad():
        for name, value in module.named_parameters():
            first = float(value.reshape(-1)[0])
            if not bool((value == first).all()):
                continue
            if name.endswith("bias"):
                value.add_(torch.randn_like(value) * 0.1)
            else:
                value.copy_((first if abs(first) > 1e-3 else 1.0) * (0.5 + torch.rand_like(value)))


def _calibrate_batch_norms(module: Any, images: Any) -> None:
    """Give the batch norms the means and variances of `images`."""
    import torch

    norms = [
        part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    ]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        module(images)
    module.eval()


def make(net: str, exporter: str, path: Path) -> None:
    """Write an architecture with random weights as ONNX."""
    import torch

    torch.manual_seed(0)
    module, size = _made(net), NETS[net][0]
    _randomize_constants(module)
    _calibrate_batch_norms(module, torch.from_numpy(make_images(size, _SETTLE, 2)))
    example = (torch.from_numpy(make_images(size, 1, 3)),)
    torch.onnx.export(
        module,
        example,
        str(path),
        input_names=["image"],
        dynamo=exporter == "dynamo",
        verbose=False,
    )


# ---- attempts ------------------------------------------------------------------------------------------------------


def classify_attempt(found: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    """Return what kind of first attempt it was.

    "usable": every output has 20 dB or more. "as the peer": less, but at most 0.5 dB less than
    onnxruntime's. "lossy": less than that. "one line", "traceback", "InternalError", "too slow" are
    what they say.
    """
    if "error" in found:
        error = found["error"]
        if error.startswith("not done"):
            return "too slow"
        raw = ("Traceback", "/onnxruntime_src/", "[ONNXRuntimeError]", "exit code")
        if error.startswith("InternalError"):
            return "InternalError"
        known = ("ModelError", "ConstraintError", "ConfigError", "DataError")
        return (
            "one line"
            if error.startswith(known) and not any(mark in error for mark in raw)
            else "traceback"
        )
    least, other = min(found["figures"].values()), min(peer.get("figures", {"": np.inf}).values())
    return "usable" if least >= 20 else "as the peer" if least >= other - 0.5 else "lossy"


def iterate_attempts(
    given: argparse.Namespace,
) -> Iterator[tuple[str, str, str, dict[str, Any], dict[str, Any]]]:
    """Yield (net, exporter, way, what came of it, what came of onnxruntime's), each as soon as it is there."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from default_quantization import run_attempt_in_process

    kept, given.loaders = given.folder / "results.jsonl", __file__
    done = dict(json.loads(line) for line in kept.read_text().splitlines()) if kept.exists() else {}

    def once(key: str, work: Any) -> dict[str, Any]:
        if key not in done:
            done[key] = work()
            with kept.open("a") as file:
                file.write(json.dumps([key, done[key]]) + "\n")
        return done[key]

    for net in given.only or NETS:
        for exporter in given.exporters:
            model = given.folder / f"{net}-{exporter}.onnx"
            written = once(
                f"{model.stem} export",
                partial(export_in_process, net, exporter, model, given.timeout),
            )
            if "error" in written:
                yield net, exporter, "export", written, {}
                continue
            peer = once(f"{model.stem} {PEER}", partial(run_attempt_in_process, model, PEER, given))
            for way in given.platforms:
                yield (
                    net,
                    exporter,
                    way,
                    once(f"{model.stem} {way}", partial(run_attempt_in_process, model, way, given)),
                    peer,
                )


def export_in_process(net: str, exporter: str, path: Path, timeout: float) -> dict[str, Any]:
    """Write an architecture in a process of its own; return {} or {"error": why not}."""
    command = [sys.executable, __file__, str(path), "--make", net, exporter]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"not exported after {timeout} s"}
    return (
        {}
        if done.returncode == 0
        else {"error": f"torch's exporter: {done.stderr.strip().splitlines()[-1][:200]}"}
    )


def row(
    net: str, exporter: str, way: str, found: Mapping[str, Any], peer: Mapping[str, Any]
) -> str:
    """Return a line of the table."""
    start = f"| {net} | {NETS[net][0]} | {exporter} | {way} |"
    if way == "export":
        return f"{start} {found['error']} | | | | | |"
    other = "-" if "error" in peer else f"{min(peer['figures'].values()):.1f}"
    if "error" in found:
        return f"{start} {classify_attempt(found, peer)}: {found['error']} | | {other} | | | |"
    ratios = [
        f"{found[what] / peer[what]:.1f}" if what in peer else "-" for what in ("seconds", "MB")
    ]
    least = f"{min(found['figures'].values()):.1f}"
    macs = f"{100 * found['integer MACs']:.1f} %"
    return (
        f"{start} {classify_attempt(found, peer)} | {least} | {other} | {macs} | "
        f"{' | '.join(ratios)} |"
    )


def main() -> int:
    """Make all attempts that the folder does not hold yet, and print the table.

    1 where one failed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(NETS), metavar="NAME")
    parser.add_argument("--exporters", nargs="+", default=list(EXPORTERS), choices=EXPORTERS)
    parser.add_argument("--platforms", nargs="+", default=["generic", "venus"])
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make(*given.make, given.folder)
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    print(
        "| net | size | exporter | platform | attempt | dB | onnxruntime, dB | integer MACs | CPU "
        "| memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    kinds: dict[str, int] = {}
    ratios: dict[str, list[float]] = {"seconds": [], "MB": []}
    for net, exporter, way, found, peer in iterate_attempts(given):
        print(row(net, exporter, way, found, peer), flush=True)
        if way == "export":
            continue
        what = classify_attempt(found, peer)
        kinds[what] = kinds.get(what, 0) + 1
        for key, values in ratios.items():
            values += [found[key] / peer[key]] if key in found and key in peer else []
    print(", ".join(f"{count} {what}" for what, count in sorted(kinds.items())))
    for key, words in (("seconds", "CPU time"), ("MB", "peak memory")):
        if ratios[key]:
            print(
                f"{words} in parts of onnxruntime's: median {median(ratios[key]):.2f}, most "
                f"{max(ratios[key]):.2f}"
            )
    return int(any(kinds.get(what) for what in ("traceback", "InternalError", "too slow")))


if __name__ == "__main__":
    sys.exit(main())
