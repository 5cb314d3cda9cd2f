# %% [markdown]
# # A streaming denoiser, from a torch model to the C program
#
# Every 16 ms a frame of sound becomes the loudness of 32 bands; a GRU, called once per frame, says
# how much of each band is speech, and the host turns the rest down. The state goes out of one call
# and into the next. Speech and noise are made by rules (`synthetic.py`): put your recordings in
# their place.
#
#     pip install 'lingeronnx[torch,c]'

# %%
import os
from pathlib import Path

import numpy as np
import torch
from synthetic import RATE, VOWELS, noise, spectrum, voices

import lingeronnx as lo

SHORT = "LINGERONNX_SHORT" in os.environ  # a few steps only: for tests
OUT = Path("build/examples")
OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

# %% [markdown]
# **Data.** Two seconds of five vowels, and noise that is 0 to 10 dB below. A net that gave the sound itself would need
# all its bits for the quietest part of it; one that gives a mask, 0 to 1, does not: what it is
# multiplied with stays on the host, in float.

# %%
BANDS = np.maximum(0, 1 - np.abs(np.linspace(0, 31, 129) - np.arange(32)[:, None])).astype(
    np.float32
)


def mixed(count, seed):
    """Return spectra of speech with noise and of the speech alone, complex64 [count, 124, 129]."""
    rng = np.random.default_rng(seed)
    speech = voices(["".join(rng.choice(list(VOWELS), 5)) for _ in range(count)], 2.0, rng)
    level = 10 ** (-rng.uniform(0, 10, (count, 1)) / 20) * speech.std(axis=1, keepdims=True)
    return spectrum(speech + level * noise(count, 2 * RATE, rng)), spectrum(speech)


def features(spectra):
    """Return the logarithm of the power in each band, float32 [count, frames, 32], about -1 to 1."""
    return (np.log10(np.abs(spectra) ** 2 @ BANDS.T + 1e-3) / 3).astype(np.float32)


def gain(speech, estimate):
    """Return how far an estimate is from the speech, in dB, the mean over all sounds (both are spectra)."""
    power, error = (np.sum(np.abs(part) ** 2, axis=(1, 2)) for part in (speech, speech - estimate))
    return float(np.mean(10 * np.log10(power / error)))


train, train_speech = mixed(16 if SHORT else 500, seed=1)
test, test_speech = mixed(8 if SHORT else 60, seed=2)

# %% [markdown]
# **The model and its training.** Trained on whole sounds, exported for one frame.


# %%
class Denoiser(torch.nn.Module):
    """A linear layer, a GRU, a mask."""

    def __init__(self, width=48):
        super().__init__()
        self.before = torch.nn.Linear(32, width)
        self.gru = torch.nn.GRU(width, width, batch_first=True)
        self.mask = torch.nn.Linear(width, 32)

    def forward(self, frame, h_in):
        """Map [N, T, 32] and a state [1, N, 48] to a mask [N, T, 32], 0 to 1, and the next state."""
        seen, h_out = self.gru(torch.relu(self.before(frame)), h_in)
        return torch.sigmoid(self.mask(seen)), h_out


def masked(spectra, mask):
    """Return the spectra with each band turned down, in NumPy or torch."""
    return (
        spectra * (mask @ BANDS)
        if isinstance(mask, np.ndarray)
        else spectra * (mask @ torch.from_numpy(BANDS))
    )


model = Denoiser()
x, noisy, speech = (torch.from_numpy(each) for each in (features(train), train, train_speech))
steps = 5 if SHORT else 300
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
for _ in range(steps):
    batch = torch.randint(len(x), (16,))
    mask, _ = model(x[batch], torch.zeros(1, 16, 48))
    error = (masked(noisy[batch], mask) - speech[batch]).abs().square().sum((1, 2))
    loss = (error / speech[batch].abs().square().sum((1, 2))).log10().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

# %% [markdown]
# **Export and quantize.** The calibration data are calls: the frames of 32 sounds, one after the other, the state fed
# back by the float model. `state` says which output goes into which input.

# %%
path, state = OUT / "denoiser.onnx", {"h_out": "h_in"}
lo.export(
    model.eval(),
    (x[:2, :1], torch.zeros(1, 2, 48)),
    path,
    output_names=["mask", "h_out"],
    dynamic_axes={"frame": {0: "N"}, "h_in": {1: "N"}},
)


def calls(spectra):
    """Return calls of the net, a frame of all sounds each."""
    return [{"frame": frame[:, None]} for frame in features(spectra).swapaxes(0, 1)]


quantized = lo.quantize(path, calls(train[: 8 if SHORT else 32]), platform="venus", state=state)
quantized.write(OUT / "denoiser_quant.onnx")
print(f"chip-ready {quantized.report.chip_ready}")

# %% [markdown]
# **What it gives**, frame by frame, as on the device: `stream` keeps the state.


# %%
def denoised(session):
    """Return the spectra of the test, each frame masked by one call."""
    stream = session.stream(state)
    return masked(
        test, np.concatenate([stream.run(["mask"], call)[0] for call in calls(test)], axis=1)
    )


print(f"noisy: {gain(test_speech, test):.2f} dB")
for name, session in (("float", lo.Session(path)), ("integer", quantized.session())):
    print(f"{name}: {gain(test_speech, denoised(session)):.2f} dB")

# %% [markdown]
# **Deploy.** One folder with the chip's part, the packer's command, golden vectors and the C program. `attempt=True`
# (`--try` on the command line) compiles the program here, runs it call by call and compares every
# integer.

# %%
board = lo.deploy(
    quantized,
    OUT / "denoiser_board",
    calls(test[:1]),
    stem="denoiser",
    samples=20,
    state=state,
    attempt=True,
)
print(f"{board.folder}: {len(board.files)} files")
print("\n".join(board.proof.lines() if board.proof else board.notes))
print("pack it with", board.command)
