"""The packer 3.0.4 and its executor for venus, arcs and venusA, written down once more from the
pages and rows.

`judge` reads an integer graph as a protobuf, with the platform and the packer's argument list, and
says whether it packs, runs, and comes out right. It shares no code with lingeronnx: a mistake there
must not be repeated here.
"""

from tests.packer.verdict import Verdict, judge

__all__ = ["Verdict", "judge"]
