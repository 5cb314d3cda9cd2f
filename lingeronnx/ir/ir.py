"""The adapter over onnx_ir, by topic: classes, files, queries, origins, names and editing.

Everything above works on `onnx_ir.Model` through the functions collected here; nothing here depends
on quantization or on a platform. Functions that change a graph change it in place; callers that
still need the original clone it first (`Model.clone`).
"""

from ._onnx_ir import *
from .graph_editing import *
from .graph_names import *
from .graph_queries import *
from .model_files import *
