"""The register tile: sums of products for P pixels by V vectors of outputs, for any row of dot instructions.

`write_tile_ir` writes one function in LLVM's language. All arguments are 64-bit integers, addresses
among them:

    source   address of the padded image, as dwords of the row's operands
    table    int32 [pixels rounded up to P]: byte offset of each pixel's window
    pixels   how many there are
    weight   [tap][V][lanes] dwords
    bias     int32 [V * lanes]
    out      address of the first output of the first pixel
    step     numbers from one pixel's output to the next's
    count    outputs of the V * lanes that are stored
    taps     int32 [taps]: byte offset of each dword in a window
    length   how many taps there are
    limit, multiplier, half, shift, low, high    of the `fixed` form

What a window holds at a tap is either one dword for all lanes, or (`own`) one dword for each lane:
the channels of a depthwise convolution. The form is worked out on whole vectors:

    "shift"   clamp((sum + half) >> shift)                                    in 32 bits
    "scale"   clamp((clamp(sum, +-limit) * multiplier + half) >> shift)       in 64 bits, both
    factors within 32 "sums"    the sums themselves, int32

Owns: the instructions. Must not know: windows, layouts, how weights are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir

from simulator.instruction_sets import InstructionSet

__all__ = [
    "ARGUMENTS",
    "DWORD",
    "FUNCTION_NAME",
    "INDEX",
    "INTERLEAVE_ARGUMENTS",
    "TileIrWriter",
    "TileShape",
    "choose_tile_size",
    "write_interleave_ir",
    "write_tile_ir",
]

FUNCTION_NAME = "tile"
ARGUMENTS = (
    "source",
    "table",
    "pixels",
    "weight",
    "bias",
    "out",
    "step",
    "count",
    "taps",
    "length",
    "limit",
    "multiplier",
    "half",
    "shift",
    "low",
    "high",
)

_BYTE, _WORD, DWORD, INDEX = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class TileShape(NamedTuple):
    """What a tile is compiled for.

    Parameters
    ----------
    operands
        "quads", "signed" or "pairs", see `rows`.
    own
        Whether every lane reads its own dwords.
    pixels, vectors
        P and V.
    form
        "shift", "scale" or "sums".
    bits
        Width of an output number: 8, 16 or 32.
    """

    operands: str
    own: bool
    pixels: int
    vectors: int
    form: str
    bits: int


def choose_tile_size(row: InstructionSet, outputs: int, pixels: int) -> tuple[int, int]:
    """Return (P, V) for so many outputs and pixels.

    The fewest loads and wasted products within the registers.
    """
    vectors = -(-outputs // row.lanes)
    wide, most = (4, 24) if row.registers >= 32 else (3, 12)
    v = min(range(wide, 0, -1), key=lambda v: -(-vectors // v) * (v + 1))
    largest = min(most // v, 8)
    p = min(range(largest, 0, -1), key=lambda p: -(-pixels // p) * (p * v + p + v))
    return p, v


def write_tile_ir(row: InstructionSet, shape: TileShape) -> str:
    """Return the LLVM module with the function `FUNCTION_NAME` for one shape."""
    writer = TileIrWriter(row, ARGUMENTS, shape)
    writer.emit_function()
    return str(writer.module)


#: Arguments of `write_interleave_ir`: addresses of the values and of the dwords, the count, and the byte
#: distances from a value to its three neighbours.
INTERLEAVE_ARGUMENTS = ("source", "out", "count", "second", "third", "fourth")


def write_interleave_ir(row: InstructionSet, operands: str, bits: int) -> str:
    """Write the LLVM module of a function `FUNCTION_NAME` that interleaves strided values into dwords, one per lane.

    Dword i holds the number i of `source`, of `bits` bits, and its neighbours. Up to a vector more
    than `count` is read and written.
    """
    writer = TileIrWriter(row, INTERLEAVE_ARGUMENTS)
    b, a, lanes = writer.b, writer.arguments, row.lanes
    narrow = ir.VectorType(ir.IntType(bits), lanes)
    with writer.loop(a["count"], lanes) as index:
        start = writer.element_address(a["source"], index, bits // 8)
        places = [start, *(b.add(start, a[name]) for name in INTERLEAVE_ARGUMENTS[3:])][
            : 2 if operands == "pairs" else 4
        ]
        width = 32 // len(places)
        total = None
        for number, place in enumerate(places):
            last = number == len(places) - 1
            value = writer.load(place, narrow)
            value = b.sext(value, writer.vector) if bits < width else b.zext(value, writer.vector)
            if bits < width and not last:
                value = b.and_(value, writer.splat(ir.Constant(DWORD, (1 << width) - 1)))
            value = (
                b.shl(value, writer.splat(ir.Constant(DWORD, width * number))) if number else value
            )
            total = value if total is None else b.or_(total, value)
        if operands == "quads":
            total = b.xor(total, writer.splat(ir.Constant(DWORD, 0x80808080)))
        place = b.inttoptr(writer.element_address(a["out"], index, 4), writer.vector.as_pointer())
        b.store(total, place).align = 1
    b.ret_void()
    return str(writer.module)


class TileIrWriter:
    """Writes the function `FUNCTION_NAME` of a module.

    `arguments` holds its arguments by name, 64-bit integers.
    """

    def __init__(
        self, row: InstructionSet, names: Sequence[str], shape: TileShape | None = None
    ) -> None:
        self.target, self.module = row, ir.Module(FUNCTION_NAME)
        self.shape = shape or TileShape("pairs", False, 1, 1, "sums", 32)
        function = ir.Function(
            self.module, ir.FunctionType(ir.VoidType(), [INDEX] * len(names)), FUNCTION_NAME
        )
        for argument, name in zip(function.args, names, strict=True):
            argument.name = name
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.arguments = dict(zip(names, function.args, strict=True))
        self.vector = ir.VectorType(DWORD, row.lanes)

    def emit_function(self) -> None:
        """Walk over the pixels, P at a time."""
        pixels, vectors = self.shape.pixels, self.shape.vectors
        sums = [[self.b.alloca(self.vector) for _ in range(vectors)] for _ in range(pixels)]
        with self.loop(self.arguments["pixels"], pixels) as first:
            offsets = self.element_address(self.arguments["table"], first, 4)
            starts = [
                self.b.add(
                    self.arguments["source"],
                    self.b.sext(self.load(self.add_offset(offsets, 4 * p), DWORD), INDEX),
                )
                for p in range(pixels)
            ]
            for v in range(vectors):
                bias = self.load(
                    self.add_offset(self.arguments["bias"], 4 * self.target.lanes * v), self.vector
                )
                for p in range(pixels):
                    self.b.store(bias, sums[p][v])
            self._emit_products(starts, sums)
            self._emit_stores(first, sums)
        self.b.ret_void()

    def _emit_products(self, starts: list[Any], sums: list[list[Any]]) -> None:
        """Add the products of all taps."""
        size = 4 * self.target.lanes
        with self.loop(self.arguments["length"], 1) as tap:
            at = self.b.sext(
                self.load(self.element_address(self.arguments["taps"], tap, 4), DWORD), INDEX
            )
            weight = self.element_address(self.arguments["weight"], tap, size * len(sums[0]))
            weights = [
                self.load(self.add_offset(weight, size * v), self.vector)
                for v in range(len(sums[0]))
            ]
            for start, totals in zip(starts, sums, strict=True):
                place = self.b.add(start, at)
                same = None if self.shape.own else self.splat(self.load(place, DWORD))
                for v, total in enumerate(totals):
                    x = (
                        self.load(self.add_offset(place, size * v), self.vector)
                        if same is None
                        else same
                    )
                    self.b.store(self._emit_dot(self.b.load(total), x, weights[v]), total)

    def _emit_dot(self, total: Any, x: Any, w: Any) -> Any:
        """Add the products of the dwords of x and w to `total`, with the row's instruction if it has one."""
        name, lanes = self.target.dot_intrinsics.get(self.shape.operands), self.target.lanes
        if self.shape.operands == "pairs":
            words = ir.VectorType(_WORD, 2 * lanes)
            if self.target.splits_word_products:
                low = self.b.mul(*(self._extract_words(v, left=True) for v in (x, w)))
                return self.b.add(
                    self.b.add(total, low), self.b.mul(*(self._extract_words(v) for v in (x, w)))
                )
            if name is None:  # LLVM knows x86's oldest form of the instruction by this
                wide = ir.VectorType(DWORD, 2 * lanes)
                product = self.b.mul(*(self.b.sext(self.b.bitcast(v, words), wide) for v in (x, w)))
                even, odd = (
                    self.b.shuffle_vector(
                        product,
                        product,
                        ir.Constant(self.vector, [2 * lane + half for lane in range(lanes)]),
                    )
                    for half in range(2)
                )
                return self.b.add(total, self.b.add(even, odd))
            pairs = self._declare_intrinsic(name, self.vector, [words, words])
            return self.b.add(total, self.b.call(pairs, [self.b.bitcast(v, words) for v in (x, w)]))
        assert name is not None
        operand = (
            ir.VectorType(_BYTE, 4 * lanes) if self.shape.operands == "signed" else self.vector
        )
        dot = self._declare_intrinsic(name, self.vector, [self.vector, operand, operand])
        return self.b.call(dot, [total, *(self.b.bitcast(v, operand) for v in (x, w))])

    def _extract_words(self, x: Any, left: bool = False) -> Any:
        """Return the upper, or the lower, word of every dword, with its sign."""
        sixteen = self.splat(ir.Constant(DWORD, 16))
        return self.b.ashr(self.b.shl(x, sixteen) if left else x, sixteen)

    def _emit_stores(self, first: Any, sums: list[list[Any]]) -> None:
        """Rescale and store the pixels that exist, lanes beyond `count` left out."""
        lanes, kind = self.target.lanes, ir.IntType(self.shape.bits)
        constants = self._splat_form()
        narrow = ir.VectorType(kind, lanes)
        store = ir.FunctionType(
            ir.VoidType(), [narrow, narrow.as_pointer(), DWORD, ir.VectorType(ir.IntType(1), lanes)]
        )
        masked = f"llvm.masked.store.v{lanes}i{self.shape.bits}.p0"
        for p, row in enumerate(sums):
            pixel = self.b.add(first, ir.Constant(INDEX, p))
            with self.b.if_then(
                self.b.icmp_signed("<", pixel, self.arguments["pixels"]), likely=True
            ):
                out = self.element_address(
                    self.arguments["out"],
                    self.b.mul(pixel, self.arguments["step"]),
                    self.shape.bits // 8,
                )
                for v, total in enumerate(row):
                    value = self._emit_rescale(self.b.load(total), constants)
                    place = self.b.inttoptr(
                        self.add_offset(out, lanes * v * self.shape.bits // 8), narrow.as_pointer()
                    )
                    left = self.b.sub(self.arguments["count"], ir.Constant(INDEX, lanes * v))
                    with self.b.if_else(
                        self.b.icmp_signed(">=", left, ir.Constant(INDEX, lanes))
                    ) as (whole, part):
                        with whole:
                            self.b.store(value, place).align = 1
                        with part:
                            numbers = ir.Constant(self.vector, list(range(lanes)))
                            mask = self.b.icmp_signed(
                                "<", numbers, self.splat(self.b.trunc(left, DWORD))
                            )
                            call = self._declare_intrinsic(masked, ir.VoidType(), list(store.args))
                            self.b.call(call, [value, place, ir.Constant(DWORD, 1), mask])

    def _splat_form(self) -> dict[str, Any]:
        """Return the numbers of the form in every lane."""
        if self.shape.form == "sums":
            return {}
        names: tuple[str, ...] = ARGUMENTS[-4:]
        kind = DWORD
        if self.shape.form == "scale":
            names, kind = ARGUMENTS[-6:], INDEX
        found = {}
        for name in names:
            narrow = DWORD if name in ("limit", "multiplier") else kind
            value = self.splat(
                self.arguments[name]
                if narrow is INDEX
                else self.b.trunc(self.arguments[name], narrow)
            )
            found[name] = value
        return found

    def _emit_rescale(self, total: Any, c: dict[str, Any]) -> Any:
        """Return a vector of sums in the form, as outputs."""
        kind = ir.VectorType(ir.IntType(self.shape.bits), self.target.lanes)
        if self.shape.form == "sums":
            return total
        if self.shape.form == "scale":
            wide = ir.VectorType(INDEX, self.target.lanes)
            zero = ir.Constant(self.vector, [0] * self.target.lanes)
            total = self.clamp(total, self.b.sub(zero, c["limit"]), c["limit"])
            total = self.b.mul(self.b.sext(total, wide), self.b.sext(c["multiplier"], wide))
        total = self.clamp(
            self.b.ashr(self.b.add(total, c["half"]), c["shift"]), c["low"], c["high"]
        )
        return (
            total
            if self.shape.bits == 32 and self.shape.form == "shift"
            else self.b.trunc(total, kind)
        )

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        value = self.b.select(self.b.icmp_signed(">", value, low), value, low)
        return self.b.select(self.b.icmp_signed("<", value, high), value, high)

    # ---- small things --------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, count: Any, step: int) -> Iterator[Any]:
        """Repeat what is written inside for 0, step, .. below `count`."""
        b, start = self.b, self.b.block
        head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(INDEX)
        index.add_incoming(ir.Constant(INDEX, 0), start)
        b.cbranch(b.icmp_signed("<", index, count), body, done)
        b.position_at_end(body)
        yield index
        index.add_incoming(b.add(index, ir.Constant(INDEX, step)), b.block)
        b.branch(head)
        b.position_at_end(done)

    def _declare_intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def add_offset(self, address: Any, offset: int) -> Any:
        return self.b.add(address, ir.Constant(INDEX, offset)) if offset else address

    def element_address(self, address: Any, index: Any, size: int) -> Any:
        return self.b.add(address, self.b.mul(index, ir.Constant(INDEX, size)))

    def load(self, address: Any, kind: Any) -> Any:
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = 1
        return value

    def splat(self, value: Any) -> Any:
        """Return a vector with `value` in every lane."""
        kind = ir.VectorType(value.type, self.target.lanes)
        unknown = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(unknown, value, ir.Constant(DWORD, 0))
        return self.b.shuffle_vector(
            first, unknown, ir.Constant(self.vector, [0] * self.target.lanes)
        )
