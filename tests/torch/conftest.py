"""These tests need the extra `torch`; where it is not installed none of them is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") and find_spec("onnxscript") else ["*.py"]
