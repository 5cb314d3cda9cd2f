"""What stands in for your data in an example: spoken words, made by rules from a seed.

Nothing here was recorded.
Figures on such data say what quantizing costs; they say nothing of how good a model would be on
real data.
"""

import numpy as np

RATE = 8000  # sound samples a second
WORDS = ("ai", "ia", "oe", "eo", "ui", "au", "other word", "no word")
#: The first two resonances of a vowel, in Hz, as phonetics books give them.
VOWELS = {"a": (750, 1200), "e": (500, 1900), "i": (300, 2300), "o": (450, 850), "u": (320, 1000)}


def voices(vowels: list[str], seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Return float32 [N, seconds * RATE].

    Of each text its vowels one after the other, each with a voice of its own.
    """
    count, length = len(vowels), int(seconds * RATE)
    block = RATE // 200  # resonances change every 5 ms
    start, end = rng.uniform(0, 0.2, (count, 1)), rng.uniform(0.75, 1, (count, 1))
    place = np.clip(
        (np.linspace(0, 1, length // block) - start) / (end - start), 0, 1
    )  # within the word, 0 to 1
    formants = np.empty((2, *place.shape))
    for row, text in enumerate(vowels):
        knots = (np.arange(len(text)) + 0.5) / len(text)
        for which in range(2):
            heard = [VOWELS[vowel][which] * rng.uniform(0.93, 1.07) for vowel in text]
            formants[which, row] = np.interp(place[row], knots, heard)
    pitch = rng.uniform(90, 240, (count, 1)) * (1 + rng.uniform(-0.2, 0.2, (count, 1)) * place)
    turns = np.cumsum(np.repeat(pitch / RATE, block, axis=1), axis=1)
    wheel = np.exp(2j * np.pi * turns).astype(np.complex64)
    sound, turned = np.zeros((count, length), np.float32), np.ones_like(wheel)
    syllables = np.array([len(text) for text in vowels])[:, None]
    swell = np.abs(np.sin(np.pi * place * syllables)) ** 0.5  # louder and softer with each vowel
    for harmonic in range(1, 28):
        turned *= wheel
        hertz = harmonic * pitch
        loud = np.exp(-(((hertz - formants[0]) / 130) ** 2)) + 0.5 * np.exp(
            -(((hertz - formants[1]) / 180) ** 2)
        )
        loud = 0.15 * swell * (loud + 0.02) * (hertz < RATE / 2)
        sound += np.repeat(loud.astype(np.float32), block, axis=1) * turned.imag
    return sound


def noise(count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return float32 [count, length] of noise, each with a colour of its own, standard deviation 1."""
    white = np.fft.rfft(rng.standard_normal((count, length), np.float32))
    colour = (np.arange(white.shape[1]) + length / 200) ** -rng.uniform(0, 0.8, (count, 1))
    sound = np.fft.irfft(white * colour, length)
    return (sound / sound.std(axis=1, keepdims=True)).astype(np.float32)


def words(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sounds of a second, float32 [count, RATE], and which of WORDS each is, int64 [count]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(WORDS), size=count)
    others = [a + b for a in VOWELS for b in VOWELS if a + b not in WORDS]
    texts = [WORDS[label] if label < 6 else rng.choice(others) for label in labels]
    sound = voices(texts, 1.0, rng) * (labels != 7)[:, None]
    loud = 0.1 * 10 ** (-rng.uniform(0, 20, (count, 1)) / 20)
    return (sound + loud * noise(count, RATE, rng)).astype(np.float32), labels


def spectrum(sound: np.ndarray, size: int = 256) -> np.ndarray:
    """Return complex64 [N, frames, size / 2 + 1]: spectra of frames that overlap by half."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, size, axis=1)[:, :: size // 2]
    return np.fft.rfft(frames * np.sin(np.pi * (np.arange(size) + 0.5) / size)).astype(np.complex64)
