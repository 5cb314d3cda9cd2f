"""The packer's argument list."""

import dataclasses
import shlex

from tests.packer.graph import Refused

PLATFORMS = ("venus", "arcs", "venusa", "mars")
PLACES = ("psram", "share-mem", "flash")
SHARED = {"venus": 655360, "arcs": 393216, "venusA": 393216}
OFF = ("false", "no", "0", "n", "f")


@dataclasses.dataclass
class Settings:
    """What the argument list says; `places` maps tensor names to places."""

    platform: str
    shared: int
    prefetch: bool = True
    thresholds: tuple = (655360, 655360, 655360, 655360)
    places: dict = dataclasses.field(default_factory=dict)
    params: str = "psram"
    batch: dict = dataclasses.field(default_factory=dict)

    def threshold(self, number):
        return self.thresholds[number - 1]


def parse(platform, args):
    """Return the Settings of shell words (a list, or one string)."""
    words = shlex.split(args) if isinstance(args, str) else list(args)
    settings, wanted = Settings(platform, SHARED[platform]), None
    if len(words) % 2:
        raise Refused(f"an argument without its value in {words}")
    for key, value in zip(words[::2], words[1::2], strict=True):
        if key == "-p":
            wanted = value
        elif key == "-m":
            _places(settings, value)
        elif key == "-c":
            settings.batch |= {
                part.split("=")[0]: int(part.split("=")[1].split(":")[0])
                for part in value.split(",")
            }
        elif key == "-r":
            settings.shared = min(settings.shared, int(value))
        elif key == "--dma_prefetch":
            settings.prefetch = value.lower() not in OFF
        elif key in ("--threshold1", "--threshold2", "--threshold3", "--threshold4"):
            limits = list(settings.thresholds)
            limits[int(key[-1]) - 1] = int(value)
            settings.thresholds = tuple(limits)
        elif key not in ("-d", "-g", "-o", "--psramsize"):
            raise Refused(f"argument {key} is not known here")
    wanted = "venus" if wanted is None else wanted
    if wanted not in PLATFORMS and wanted not in tuple(name.upper() for name in PLATFORMS):
        raise Refused(
            f"-p {wanted}: must be one of {', '.join(PLATFORMS)}, all lower or all upper case"
        )
    if wanted.lower() != platform.lower():
        raise Refused(f"-p {wanted} is not the platform of the graph, {platform}")
    return settings


def _places(settings, value):
    for entry in value.split(","):
        if entry.count(":") != 1:
            raise Refused(f"-m: the entry '{entry}' is not name:place")
        name, place = entry.split(":")
        if place.lower() not in PLACES:
            raise Refused(f"-m: place '{place}' is not psram, share-mem or flash")
        if name == "params":
            settings.params = place.lower()
        else:
            settings.places[name] = place.lower()
