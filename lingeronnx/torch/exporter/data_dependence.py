"""Detection of data-dependent decisions in the Python code of a net.

Examples are an ``if`` on a tensor, ``.item()``, and sizes that depend on data. A trace silently
keeps the decision for the example inputs. Therefore a run besides the trace is observed: tensors
that depend on the inputs are tracked, and each place in the user's code where Python reads a value
of one is recorded. Reading sizes is allowed unless they depend on tensor contents. Torch's own
layers, and values of parameters and buffers, are not reported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["DataDependenceTracker"]

_TORCH = str(Path(torch.__file__).parent)
#: Files of torch that call functions on behalf of the user's code.
_TENSOR_METHOD_FILES = ("overrides.py", "_tensor.py")

#: Functions that convert tensor contents to Python values -> name in messages.
_VALUE_READS: Mapping[Any, str] = {
    Tensor.__bool__: "bool()",
    Tensor.__int__: "int()",
    Tensor.__float__: "float()",
    Tensor.__complex__: "complex()",
    Tensor.__index__: "an index",
    Tensor.__contains__: "in",
    Tensor.item: "item()",
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.__array__: "numpy()",
    Tensor.equal: "equal()",
    Tensor.allclose: "allclose()",
    Tensor.is_nonzero: "is_nonzero()",
    torch.equal: "equal()",
    torch.allclose: "allclose()",
    torch.is_nonzero: "is_nonzero()",
}
#: Functions that read the size of a tensor -> name in messages.
_SIZE_READS: Mapping[Any, str] = {
    Tensor.shape.__get__: "shape",
    Tensor.size: "size()",
    Tensor.numel: "numel()",
    Tensor.__len__: "len()",
}
#: Functions whose output size depends on tensor contents, as indexing by a boolean tensor does.
_DATA_SIZED_FUNCTIONS = {
    torch.nonzero,
    Tensor.nonzero,
    torch.argwhere,
    Tensor.argwhere,
    torch.masked_select,
    Tensor.masked_select,
    torch.unique,
    Tensor.unique,
    torch.unique_consecutive,
    Tensor.unique_consecutive,
}


class DataDependenceTracker(TorchFunctionMode):
    """Context that tracks the tensors which depend on some tensors.

    Parameters
    ----------
    tensors
        The inputs of the net.

    Attributes
    ----------
    locations
        File and line -> the function that reads a value or a data-dependent size there.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Prepare to track results of torch functions that depend on the net's inputs `tensors`."""
        super().__init__()
        self.locations: dict[str, str] = {}
        self._dependent: Any = WeakIdKeyDictionary()
        self._data_sized: Any = WeakIdKeyDictionary()
        for tensor in tensors:
            self._dependent[tensor] = True

    def lines(self) -> list[str]:
        """Return a warning for each line of user code that reads data, in order of discovery."""
        return [
            f"{location}: this depends on the data ({function}); the graph keeps the result of the "
            "example inputs: use torch.where, or move it out of forward"
            for location, function in self.locations.items()
        ]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the torch function `func`; record reads of values, and track its results.

        A result depends on the data if an argument does. Recorded are reads of the values of such
        tensors (as by `item`), and reads of the size of tensors whose size depends on the data.
        """
        tensors = _collect_tensors((args, kwargs or {}))
        is_dependent = any(tensor in self._dependent for tensor in tensors)
        is_data_sized = any(tensor in self._data_sized for tensor in tensors)
        if is_dependent and func in _VALUE_READS:
            self._record_location(_VALUE_READS[func])
        elif is_data_sized and func in _SIZE_READS:
            self._record_location(_SIZE_READS[func])
        result = func(*args, **(kwargs or {}))
        if not is_dependent:
            return result
        if func in _DATA_SIZED_FUNCTIONS or (
            func is Tensor.__getitem__ and _is_boolean_index(args[1])
        ):
            is_data_sized = True
        # Assigning to elements modifies the first argument.
        for tensor in _collect_tensors(args[0] if func is Tensor.__setitem__ else result):
            self._dependent[tensor] = True
            if is_data_sized and tensor.dim():
                self._data_sized[tensor] = True
        return result

    def _record_location(self, function: str) -> None:
        """Record the line of user code that called a torch function; `function` is its label.

        Not if a layer of torch itself called it. The first function counts for a line.
        """
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
            if Path(frame.f_code.co_filename).name not in _TENSOR_METHOD_FILES:
                return  # a layer of torch
            frame = frame.f_back
        location = f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"
        self.locations.setdefault(location, function)


def _collect_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in `tree`, a nested structure of lists, tuples and dicts, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_boolean_index(index: Any) -> bool:
    """Whether `index`, the argument of an indexing, is or contains a boolean tensor."""
    return any(tensor.dtype == torch.bool for tensor in _collect_tensors(index))
