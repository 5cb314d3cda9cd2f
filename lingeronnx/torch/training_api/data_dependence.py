"""Where a net's own Python reads the numbers it is given.

An `if` on a tensor, `.item()`, a size that depends on data.
A trace keeps what the example inputs gave there, for all inputs to come, and says nothing. So the
run beside the trace is followed: tensors that depend on the inputs are known, and each time that
Python asks one of them for a number, the place in the user's code is noted. Sizes may be asked for,
where they do not depend on what tensors hold. What torch's own layers do is sound, and so are
numbers of parameters and buffers.
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
_TENSOR_METHOD_FILES = (
    "overrides.py",
    "_tensor.py",
)  # of torch: what a tensor's own methods stand behind

#: What makes a Python value of what a tensor holds -> what people write.
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
_SIZE_READS: Mapping[Any, str] = {
    Tensor.shape.__get__: "shape",
    Tensor.size: "size()",
    Tensor.numel: "numel()",
    Tensor.__len__: "len()",
}
#: What has as many elements as the data say; also an index of truths.
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
    """Follows what depends on `tensors` while it is entered.

    locations : {file and line: what Python asked for there}, in the order of the run.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.locations: dict[str, str] = {}
        self._given: Any = WeakIdKeyDictionary()
        self._counted: Any = WeakIdKeyDictionary()
        for tensor in tensors:
            self._given[tensor] = True

    def lines(self) -> list[str]:
        """Return what a user should know of each place."""
        return [
            f"{place}: the data decide there, by {what}; the graph keeps what the example inputs "
            "gave, whatever other "
            "inputs would decide: use torch.where, or take it out of forward"
            for place, what in self.locations.items()
        ]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, and note what it makes of what."""
        given = [
            leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)
        ]
        depends = any(tensor in self._given for tensor in given)
        counted = any(tensor in self._counted for tensor in given)
        if (depends and func in _VALUE_READS) or (counted and func in _SIZE_READS):
            self._record_location(_VALUE_READS.get(func) or _SIZE_READS[func])
        result = func(*args, **(kwargs or {}))
        if not depends:
            return result
        counts = (
            counted
            or func in _DATA_SIZED_FUNCTIONS
            or (func is Tensor.__getitem__ and _is_boolean_index(args[1]))
        )
        changed = [args[0]] if func is Tensor.__setitem__ else pytree.tree_leaves(result)
        for leaf in changed:
            if isinstance(leaf, Tensor):
                self._given[leaf] = True
                if counts and leaf.dim():
                    self._counted[leaf] = True
        return result

    def _record_location(self, what: str) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
            if Path(frame.f_code.co_filename).name not in _TENSOR_METHOD_FILES:
                return  # a layer of torch
            frame = frame.f_back
        self.locations.setdefault(
            f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}", what
        )


def _is_boolean_index(index: Any) -> bool:
    """Whether an index picks elements by truths."""
    return any(
        isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in pytree.tree_leaves(index)
    )
