"""Numba's compiler for kernels, reduced to what kernels need.

A kernel is called by its address, through a record (`native`), never from Python; Numba prepares
every function for a call from Python. Left out are therefore: passes for Python features that
kernels do not use, reference counts (except in kernels that allocate), and, for functions that
kernels call, optimization and machine code of their own: they are optimized in the kernel that
they are linked into.

Imports Numba: load this module when something must be compiled. Must not know: kernels.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import binding
from numba import _dynfunc
from numba.core import (
    cgutils,
    codegen,
    compiler,
    funcdesc,
    lowering,
    typed_passes,
    types,
    typing,
    untyped_passes,
)
from numba.core import ir as numba_ir
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.runtime import rtsys
from numba.cpython import builtins
from numba.extending import intrinsic
from numba.np import arrayobj

__all__ = ["KernelCompiler", "KernelLibrary"]


class KernelLibrary(codegen.JITCodeLibrary):
    """LLVM code of a function and of those that it calls, optimized when its object is emitted."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Link a module of llvmlite into this library, without optimizing it."""
        text = cgutils.normalize_ir_text(str(ir_module))
        self._final_module.link_in(binding.parse_assembly(text))

    def finalize(self) -> None:
        """Link the called functions. Numba would also optimize the module and generate code."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            if library is not rtsys.library or self._counts_references():
                module = library._get_module_for_linking()
                self._final_module.link_in(module, preserve=True)
        self._finalized = True

    def _counts_references(self) -> bool:
        """Whether the code calls Numba's functions for reference counts and memory."""
        return any(function.name.startswith("NRT_") for function in self._final_module.functions)

    def emit_object(self) -> bytes:
        """Optimize the module and return its machine code as an object file."""
        self._ensure_finalized()
        machine = self._codegen._tm
        options = binding.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization, options.slp_vectorization = True, False
        builder = binding.create_pass_builder(machine, options)
        passes = builder.getModulePassManager()
        passes.add_refprune_pass()
        passes.run(self._final_module, builder)
        self._final_module.verify()
        code: bytes = machine.emit_object(self._final_module)
        return code

    def list_external_symbols(self) -> list[str]:
        """Return the names of the functions that the code calls and does not contain."""
        return [
            function.name
            for function in self._final_module.functions
            if function.is_declaration and not function.name.startswith("llvm.")
        ]


class _ArrayFields:
    """Fields of an array's structure, an LLVM value: its shape, strides, data, and so on."""

    def __init__(self, context: Any, builder: Any, array: Any, value: Any) -> None:
        """Take `value`, of Numba's type `array`."""
        self._builder, self._value = builder, value
        self._model = context.data_model_manager[array]

    def __getattr__(self, name: str) -> Any:
        """Return field `name`."""
        return self._builder.extract_value(self._value, self._model.get_field_position(name))


class _Lower(lowering.Lower):
    """Writes the LLVM code of a function.

    Elements and views of arrays are computed by Numba's rules, with a tenth of its instructions:
    Numba copies the structure of the array to memory at each access.
    """

    def delvar(self, name: str) -> None:
        """End the life of a variable: nothing to do unless references are counted."""
        if self.context.enable_nrt:
            super().delvar(name)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Write the code of ``value[index]``."""
        array, position = signature.args
        if not _is_basic_index(array, position) or self.context.enable_nrt:
            return super().lower_getitem(resty, expr, value, index, signature)
        fields = self._load_array(value, array)
        pointer, shape, strides = self._locate(fields, array, index, position)
        if isinstance(signature.return_type, types.Array):
            result = self._make_view(signature.return_type, fields, pointer, shape, strides)
        else:
            result = arrayobj.load_item(self.context, self.builder, array, pointer)
        return self.context.cast(self.builder, result, signature.return_type, resty)

    def lower_setitem(self, target: Any, index: Any, value: Any, signature: Any) -> Any:
        """Write the code of ``target[index] = value``."""
        array, position, kind = signature.args
        is_element = _is_basic_index(array, position) and _count_axes(array, position) == 0
        if not is_element or isinstance(kind, types.Buffer):
            return super().lower_setitem(target, index, value, signature)
        pointer, _, _ = self._locate(self._load_array(target, array), array, index, position)
        element = self.context.cast(
            self.builder, self.loadvar(value.name), self.typeof(value.name), array.dtype
        )
        arrayobj.store_item(self.context, self.builder, array, element, pointer)
        return None

    def _load_array(self, variable: Any, array: Any) -> _ArrayFields:
        """Return the fields of an array variable."""
        value = self.loadvar(variable.name)
        value = self.context.cast(self.builder, value, self.typeof(variable.name), array)
        return _ArrayFields(self.context, self.builder, array, value)

    def _locate(self, fields: _ArrayFields, array: Any, index: Any, position: Any) -> Any:
        """Return pointer, shape and strides of the element or view at variable `index`."""
        value = self.context.cast(
            self.builder, self.loadvar(index.name), self.typeof(index.name), position
        )
        kinds, values = [position], [value]
        if isinstance(position, types.BaseTuple):
            kinds = list(position.types)
            values = cgutils.unpack_tuple(self.builder, value, len(kinds))
        return arrayobj.basic_indexing(self.context, self.builder, array, fields, kinds, values)

    def _make_view(
        self, view: Any, fields: _ArrayFields, pointer: Any, shape: Any, strides: Any
    ) -> Any:
        """Return the structure of an array of type `view`."""
        builder, size_type = self.builder, self.context.get_value_type(types.intp)
        count = size_type(1)
        for size in shape:
            count = builder.mul(count, size, flags=["nsw"])
        values = {
            "meminfo": fields.meminfo,
            "parent": fields.parent,
            "nitems": count,
            "itemsize": fields.itemsize,
            "data": pointer,
            "shape": cgutils.pack_array(builder, shape, size_type),
            "strides": cgutils.pack_array(builder, strides, size_type),
        }
        model = self.context.data_model_manager[view]
        result = self.context.get_constant_undef(view)
        for name, value in values.items():
            result = builder.insert_value(result, value, model.get_field_position(name))
        return result


def _is_basic_index(array: Any, position: Any) -> bool:
    """Whether an array is indexed by integers and slices only."""
    if not isinstance(array, types.Array):
        return False
    kinds = position.types if isinstance(position, types.BaseTuple) else [position]
    return all(isinstance(kind, types.Integer | types.SliceType) for kind in kinds)


def _count_axes(array: Any, position: Any) -> int:
    """Return the number of axes of the array that a basic index selects."""
    kinds = position.types if isinstance(position, types.BaseTuple) else [position]
    integers = sum(isinstance(kind, types.Integer) for kind in kinds)
    return int(array.ndim) - integers


@intrinsic
def _smaller(typingctx: Any, x: Any, y: Any) -> Any:
    """Return Numba's code of ``min(x, y)``, which is a function to compile otherwise."""
    return _select(typingctx, x, y, operator.lt)


@intrinsic
def _larger(typingctx: Any, x: Any, y: Any) -> Any:
    """Return Numba's code of ``max(x, y)``, which is a function to compile otherwise."""
    return _select(typingctx, x, y, operator.gt)


def _select(typingctx: Any, x: Any, y: Any, compare: Any) -> Any:
    """Return the signature and the code generator of y if compare(y, x) else x."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit the comparison in the common type, and the selection."""
        return builtins.do_minmax(context, builder, signature.args, args, compare)

    return typing.signature(typingctx.unify_types(x, y), x, y), codegen


_BUILTINS = ((min, _smaller), (max, _larger))


@register_pass(mutates_CFG=False, analysis_only=False)
class _ReplaceBuiltins(FunctionPass):
    """Replaces builtin functions by intrinsics that need no compilation of their own."""

    _name = "kernel_builtins"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Replace the values of global variables."""
        is_changed = False
        for block in state.func_ir.blocks.values():
            for assignment in block.find_insts(numba_ir.Assign):
                variable = assignment.value
                if not isinstance(variable, numba_ir.Global):
                    continue
                for function, replacement in _BUILTINS:
                    if variable.value is function:
                        variable.value = replacement
                        is_changed = True
        return is_changed


@register_pass(mutates_CFG=True, analysis_only=False)
class _TypeInference(typed_passes.NopythonTypeInference):
    """Type inference that lets functions without reference counts return arrays."""

    _name = "kernel_type_inference"

    def run_pass(self, state: Any) -> bool:
        """Infer the types of variables, calls and the result."""
        inferred = typed_passes.type_inference_stage(
            state.typingctx,
            state.targetctx,
            state.func_ir,
            state.args,
            state.return_type,
            state.locals,
        )
        state.typemap, state.return_type, state.calltypes, state.typing_errors = inferred
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Lowering into a `KernelLibrary`, without an entry for calls from Python."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Write the LLVM code of the function, and register it for calls from other functions."""
        context, flags = state.targetctx, state.flags
        library = KernelLibrary(context.codegen(), state.func_id.func_qualname)
        descriptor = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            state.func_ir,
            state.typemap,
            state.return_type,
            state.calltypes,
            mangler=context.mangler,
            inline=flags.forceinline,
            noalias=flags.noalias,
            abi_tags=[flags.get_mangle_string()],
        )
        with context.push_code_library(library):
            lower = _Lower(context, library, descriptor, state.func_ir, metadata=state.metadata)
            lower.lower()

        name = descriptor.qualname.rpartition(".")[2]
        module = descriptor.lookup_module()
        entry_point = _dynfunc.make_function(module, name, "", 0, lower.env, (library,))
        context.insert_user_function(entry_point, descriptor, [library])
        state.library = library
        state["cr"] = compiler._LowerResult(
            descriptor, lower.call_helper, cfunc=entry_point, env=lower.env
        )
        return True


_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    _ReplaceBuiltins,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    _TypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    _Lowering,
    typed_passes.NoPythonBackend,
)


class KernelCompiler(compiler.CompilerBase):
    """Numba's compiler with the passes that kernels need."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the only pipeline."""
        manager = PassManager("kernel")
        for compiler_pass in _PASSES:
            manager.add_pass(compiler_pass, compiler_pass._name)
        manager.finalize()
        return [manager]
