"""The register tile: sums of products for P pixels by V vectors of outputs, with dot instructions.

`write_tile_ir` writes one function in LLVM's language. All arguments are 64-bit integers, some of
them addresses:

    source   address of the padded image, as dwords of the operands
    table    int32 [pixels rounded up to P]: byte offset of each pixel's window
    pixels   number of pixels
    weight   [block][tap][V][lanes] dwords
    bias     int32 [block][V * lanes]
    out      address of the first output of the first pixel
    step     elements from one pixel's output to the next's
    count    number of outputs of a pixel
    blocks   number of blocks of V * lanes outputs; the last one may have fewer outputs
    apart    bytes from one block's inputs to the next
    taps     int32 [taps]: byte offset of each dword in a window
    length   number of taps
    form     int64 [stages][6]: limit, multiplier, half, shift, low, high
    places   int32 [pixels rounded up to P]: element offset of the first output of each pixel

At a tap, a window has either one dword for all lanes or (`per_lane`) one dword per lane: the
channels of a depthwise convolution. Where a dword has more neighbours than the kernel, it serves
two windows: with `columns` 2, `pixels` counts pairs of neighbours in a row, whose weights are
[block][tap][2][V][lanes]. Only then `places` is read, otherwise pixels follow each other.

The rescale form has stages that are computed on vectors one after the other; without any, the
results are the sums, int32:

    "shift"   clamp((sum + half) >> shift)                                  in 32 bits
    "scale"   clamp((clamp(sum, +-limit) * multiplier + half) >> shift)     in 64 bits, with both
                                                                            factors within 32
    "high"    "scale" with a shift of at least 32, of which `shift` is what exceeds 32: the upper
              halves of the products are enough

Owns: the instructions. Must not know: windows, layouts, the packing of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from llvmlite import ir

from simulator.instruction_sets import InstructionSet

__all__ = [
    "ARGUMENTS",
    "DWORD",
    "FUNCTION_NAME",
    "INDEX",
    "INTERLEAVE_ARGUMENTS",
    "ROW_COPY_ARGUMENTS",
    "TileIrWriter",
    "TileShape",
    "choose_depthwise_tile_size",
    "choose_tile_size",
    "write_interleave_ir",
    "write_row_copy_ir",
    "write_tile_ir",
]

FUNCTION_NAME = "tile"
_MAX_PIXELS, _MAX_VECTORS = 8, 4  # of a tile
ARGUMENTS = (
    "source",
    "table",
    "pixels",
    "weight",
    "bias",
    "out",
    "step",
    "count",
    "blocks",
    "apart",
    "taps",
    "length",
    "form",
    "places",
)
#: Values of a stage of the form in memory.
FORM_VALUES = ("limit", "multiplier", "half", "shift", "low", "high")

_UNPACKED_BYTES = 16  # of a vector register of any processor
_SIGN_BITS = -0x7F7F7F80  # 0x80 in each byte

_BYTE, _WORD, DWORD, INDEX = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class TileShape(NamedTuple):
    """Parameters that a tile, the product of some pixels and vectors of outputs, is compiled for.

    Parameters
    ----------
    operands
        "quads" (four unsigned by four signed bytes), "signed" (four by four signed bytes), "pairs"
        (two by two signed words) or "bytes" (four unsigned by four signed bytes, whose products of
        `window` taps are summed up in 16 bits).
    per_lane
        Whether every lane reads its own dwords.
    pixels, vectors
        P and V: pixels, and vectors of outputs per pixel, that are computed at once.
    form
        Stages of the rescale form, "shift", "scale" or "high"; empty if sums are not rescaled.
    bits
        Width of an output element: 8, 16 or 32.
    window
        Number of taps that are computed together; it divides the number of taps unless `taps` is
        given.
    columns
        Neighbouring pixels that share their dwords, 1 or 2.
    taps
        Number of taps, if the loop over them is unrolled; else 0.
    """

    operands: str
    per_lane: bool
    pixels: int
    vectors: int
    form: tuple[str, ...]
    bits: int
    window: int = 1
    columns: int = 1
    taps: int = 0


def choose_tile_size(
    instructions: InstructionSet, operands: str, outputs: int, pixels: int
) -> tuple[int, int]:
    """Choose (P, V) with the fewest instructions whose values all fit the registers.

    Per tap these are P * V sums, V weights and the dword of a pixel, and for "pairs" and "bytes"
    their product, because these instructions do not accumulate. For "bytes" a pixel has V sums of
    16 bits instead of the weights, and a constant that widens them. Weights that are operands in
    memory cost no instruction. `outputs` and `pixels` are the numbers of outputs per pixel and of
    pixels to compute.
    """
    vectors = -(-outputs // instructions.lanes)
    is_product_apart = operands in ("pairs", "bytes")
    temporaries = 1 + is_product_apart + (operands == "bytes")
    sizes = [
        (p, v)
        for p in range(_MAX_PIXELS, 0, -1)
        for v in range(_MAX_VECTORS, 0, -1)
        if p * v + v + temporaries <= instructions.registers
    ]

    def count_instructions(size: tuple[int, int]) -> int:
        """Count the instructions per tap of all pixels and vectors."""
        p, v = size
        tiles, rest = divmod(pixels, p)
        if rest > p // 2:
            tiles, rest = tiles + 1, 0
        products = v * (1 + is_product_apart)
        weights = 0 if instructions.has_memory_operands and v > 1 else v
        tile, single = p * products + p + weights, products + 1 + weights
        return -(-vectors // v) * (tiles * tile + rest * single)

    return min(sizes, key=count_instructions)


def choose_depthwise_tile_size(
    instructions: InstructionSet, outputs: int, columns: int
) -> tuple[int, int]:
    """Choose (P, V) of a depthwise convolution: the fewest lanes without a channel, then the most.

    `columns` pixels share their dwords. All values of two pixels fit the registers.
    """
    vectors = -(-outputs // instructions.lanes)
    v = min(range(_MAX_VECTORS, 0, -1), key=lambda size: -(-vectors // size) * size)
    return max(_MAX_PIXELS // (v * columns), 1), v


def write_tile_ir(instructions: InstructionSet, shape: TileShape) -> str:
    """Return the LLVM module, as text, whose function "tile" computes tiles of one shape."""
    writer = TileIrWriter(instructions, ARGUMENTS, shape)
    writer.emit_function()
    return str(writer.module)


#: Arguments of the function of `write_interleave_ir`: addresses of the values and of the dwords,
#: the count of values of a column, the number of columns, the byte distances from one column to the
#: next and from the first to the last, and those from a value to its three neighbours.
INTERLEAVE_ARGUMENTS = (
    "source",
    "out",
    "count",
    "columns",
    "distance",
    "last",
    "second",
    "third",
    "fourth",
)


def write_interleave_ir(instructions: InstructionSet, operands: str, bits: int) -> str:
    """Write the LLVM module of a function that interleaves strided values into dwords.

    Dword i of a column contains element i of the column and the one ("pairs") or three elements at
    given byte distances from it, in the format of `operands`. Columns are written one after the
    other; their distances are equal but for the last one. Up to 16 elements more than the count are
    read and written. The function's arguments are `INTERLEAVE_ARGUMENTS`.

    Parameters
    ----------
    instructions
        The instruction set.
    operands
        "quads", "signed", "pairs" or "bytes".
    bits
        Width of the elements of `source`.

    Returns
    -------
    str
        Module whose function is `FUNCTION_NAME`.
    """
    writer = TileIrWriter(instructions, INTERLEAVE_ARGUMENTS)
    b, a = writer.b, writer.arguments
    unpacks = operands != "pairs" and instructions.lanes <= _UNPACKED_BYTES // 2
    step = _UNPACKED_BYTES if unpacks else instructions.lanes
    with writer.loop(a["columns"], 1) as column:
        distance = b.mul(column, a["distance"])
        is_last = b.icmp_signed(">", distance, a["last"])
        first = b.add(a["source"], b.select(is_last, a["last"], distance))
        target = b.add(a["out"], b.mul(b.mul(column, a["count"]), ir.Constant(INDEX, 4)))
        with writer.loop(a["count"], step) as index:
            start = writer.element_address(first, index, bits // 8)
            out = writer.element_address(target, index, 4)
            neighbours = INTERLEAVE_ARGUMENTS[-3:][: 1 if operands == "pairs" else 3]
            addresses = [start, *(b.add(start, a[name]) for name in neighbours)]
            if unpacks:
                writer.emit_unpacked_dwords(addresses, out, operands)
            else:
                dword = writer.emit_dwords(addresses, bits, operands)
                b.store(dword, b.inttoptr(out, writer.vector.as_pointer())).align = 1
    b.ret_void()
    return str(writer.module)


#: Arguments of the function of `write_row_copy_ir`: addresses of the elements and of the row, and
#: the counts of elements before the copied ones, of these, and after them.
ROW_COPY_ARGUMENTS = ("source", "out", "left", "count", "right")


def write_row_copy_ir(instructions: InstructionSet, operands: str, bits: int) -> str:
    """Write the LLVM module of a function that copies elements to a padded row of operands.

    The elements before and after the copied ones are zeros. Up to one vector more is written, but
    not read. The function's arguments are `ROW_COPY_ARGUMENTS`.

    Parameters
    ----------
    instructions
        The instruction set.
    operands
        "quads", "signed", "pairs" or "bytes"; the width of "pairs" is 16 bits, of others 8.
    bits
        Width of the elements of `source`: 8 or 16.

    Returns
    -------
    str
        Module whose function is `FUNCTION_NAME`.
    """
    writer = TileIrWriter(instructions, ROW_COPY_ARGUMENTS)
    b, a = writer.b, writer.arguments
    kind = _WORD if operands == "pairs" else _BYTE
    size, zero = kind.width // 8, -128 if operands == "quads" else 0
    lanes = 4 * instructions.lanes // size

    def copy(index: Any, count: int) -> None:
        """Emit the copy of `count` elements from index `index` on."""
        address = writer.element_address(a["source"], index, bits // 8)
        target = ir.VectorType(kind, count)
        value = writer.load(address, ir.VectorType(ir.IntType(bits), count))
        value = b.sext(value, target) if bits < kind.width else value
        value = b.xor(value, ir.Constant(target, [zero] * count)) if zero else value
        place = writer.element_address(out, index, size)
        b.store(value, b.inttoptr(place, target.as_pointer())).align = 1

    def fill(start: Any, count: Any) -> None:
        """Emit `count` zeros from address `start` on."""
        zeros = ir.Constant(ir.VectorType(kind, lanes), [zero] * lanes)
        with writer.loop(count, lanes) as index:
            place = writer.element_address(start, index, size)
            b.store(zeros, b.inttoptr(place, zeros.type.as_pointer())).align = 1

    fill(a["out"], a["left"])
    out = writer.element_address(a["out"], a["left"], size)
    last = b.sub(a["count"], ir.Constant(INDEX, lanes))
    with b.if_else(b.icmp_signed(">=", last, ir.Constant(INDEX, 0)), likely=True) as (long, short):
        with long, writer.loop(a["count"], lanes) as index:
            copy(b.select(b.icmp_signed("<", index, last), index, last), lanes)
        with short, writer.loop(a["count"], 1) as index:
            copy(index, 1)
    fill(writer.element_address(out, a["count"], size), a["right"])
    b.ret_void()
    return str(writer.module)


class TileIrWriter:
    """Writes the function `FUNCTION_NAME` of an LLVM module for vectors of an instruction set.

    Attributes
    ----------
    target
        The instruction set.
    module
        The module.
    shape
        Shape of the tile.
    b
        LLVM's builder, positioned in the function.
    arguments
        Arguments of the function by name, 64-bit integers.
    vector
        Type of a vector of 32-bit lanes.
    """

    def __init__(
        self, instructions: InstructionSet, names: Sequence[str], shape: TileShape | None = None
    ) -> None:
        """Start an LLVM function whose 64-bit integer arguments have `names`.

        `shape` is the tile; None for a function that is not a tile.
        """
        self.target, self.module = instructions, ir.Module(FUNCTION_NAME)
        self.shape = shape or TileShape("pairs", False, 1, 1, (), 32)
        function = ir.Function(
            self.module, ir.FunctionType(ir.VoidType(), [INDEX] * len(names)), FUNCTION_NAME
        )
        for argument, name in zip(function.args, names, strict=True):
            argument.name = name
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.arguments = dict(zip(names, function.args, strict=True))
        self.vector = ir.VectorType(DWORD, instructions.lanes)
        self._form = self.load_form()
        self._initial: Any = self.constant(0)  # added to the biases

    def emit_dwords(self, addresses: list[Any], bits: int, operands: str) -> Any:
        """Emit the dwords of elements of `bits` bits at two or four addresses; return a vector.

        Each address is that of the elements of all lanes.
        """
        b, dword = self.b, None
        width = 32 // len(addresses)
        for position, address in enumerate(addresses):
            value = self.load(address, ir.VectorType(ir.IntType(bits), self.target.lanes))
            value = b.sext(value, self.vector) if bits < width else b.zext(value, self.vector)
            if bits < width and position + 1 < len(addresses):
                value = b.and_(value, self.splat(ir.Constant(DWORD, (1 << width) - 1)))
            if position:
                value = b.shl(value, self.splat(ir.Constant(DWORD, width * position)))
            dword = value if dword is None else b.or_(dword, value)
        return b.xor(dword, self.constant(_SIGN_BITS)) if operands == "quads" else dword

    def emit_unpacked_dwords(self, addresses: list[Any], out: Any, operands: str) -> None:
        """Emit the dwords of 16 bytes at four addresses, and their stores from address `out` on.

        Bytes and then words are interleaved in vectors of 16 bytes.
        """
        b, count = self.b, _UNPACKED_BYTES
        kind = ir.VectorType(_BYTE, count)
        values = [self.load(address, kind) for address in addresses]
        if operands == "quads":
            values = [b.xor(value, ir.Constant(kind, [-128] * count)) for value in values]
        even, odd = self._interleave(*values[:2]), self._interleave(*values[2:])
        words = ir.VectorType(_WORD, count // 2)
        for half in range(2):
            pair = [b.bitcast(part[half], words) for part in (even, odd)]
            for position, dwords in enumerate(self._interleave(*pair)):
                address = self.add_offset(out, count * (2 * half + position))
                b.store(dwords, b.inttoptr(address, dwords.type.as_pointer())).align = 1

    def _interleave(self, x: Any, y: Any) -> list[Any]:
        """Emit the elements of vectors x and y in turn; return the two halves of the result."""
        count = x.type.count
        order = [i // 2 + i % 2 * count for i in range(2 * count)]
        indices = ir.VectorType(DWORD, count)
        parts = order[:count], order[count:]
        return [self.b.shuffle_vector(x, y, ir.Constant(indices, part)) for part in parts]

    def emit_function(self) -> None:
        """Emit the loops over blocks of outputs and over the pixels: P, then what is left, singly.

        If more than half of P pixels are left, they are computed as P, of which those that do not
        exist are not stored.
        """
        pixels, vectors, columns = self.shape.pixels, self.shape.vectors, self.shape.columns
        sums = []
        for _ in range(pixels * columns):
            sums.append([self.b.alloca(self.vector) for _ in range(vectors)])
        if self.shape.form[:1] == ("shift",):  # sums begin with its half
            self._initial = self._form[0]["half"]
            self._form[0]["half"] = self.constant(0)
        tiled = self.b.sub(self.arguments["pixels"], ir.Constant(INDEX, pixels // 2))
        whole = self.arguments
        with self.loop(whole["blocks"], 1) as block:
            self.arguments = self._emit_block_arguments(whole, block)
            with self.loop(tiled, pixels) as first:
                self._emit_tile(first, sums)
            if pixels > 1:
                with self.loop(self.arguments["pixels"], 1, first) as last:
                    self._emit_tile(last, sums[:columns])
        self.b.ret_void()

    def _emit_block_arguments(self, whole: dict[str, Any], block: Any) -> dict[str, Any]:
        """Emit the arguments of one block of outputs, whose index is `block`; return all by name.

        `whole` are those of the function.
        """
        b, lanes = self.b, self.target.lanes * self.shape.vectors
        first = b.mul(block, ir.Constant(INDEX, lanes))
        weights = b.mul(first, b.mul(whole["length"], ir.Constant(INDEX, self.shape.columns)))
        return {
            **whole,
            "source": b.add(whole["source"], b.mul(block, whole["apart"])),
            "weight": self.element_address(whole["weight"], weights, 4),
            "bias": self.element_address(whole["bias"], first, 4),
            "out": self.element_address(whole["out"], first, self.shape.bits // 8),
            "count": b.sub(whole["count"], first),
        }

    def _emit_tile(self, first: Any, sums: list[list[Any]]) -> None:
        """Emit bias, products and stores of the pixels from index `first` on.

        `sums` [P * columns][V] are the addresses of the accumulators.
        """
        starts = []
        for p in range(len(sums) // self.shape.columns):
            offset = self._load_offset("table", first, p)
            starts.append(self.b.add(self.arguments["source"], offset))
        for v in range(len(sums[0])):
            bias_address = self.add_offset(self.arguments["bias"], 4 * self.target.lanes * v)
            bias = self.b.add(self.load(bias_address, self.vector), self._initial)
            for row in sums:
                self.b.store(bias, row[v])
        self._emit_products(starts, sums)
        self._emit_stores(first, sums)

    def _emit_products(self, starts: list[Any], sums: list[list[Any]]) -> None:
        """Emit the windows of taps, whose products are added to `sums` [P * columns][V].

        `starts` are the addresses of the windows of the P pixels.
        """
        taps, window = self.shape.taps, self.shape.window
        for first in range(0, taps, window):
            size = min(window, taps - first)
            self._emit_window(starts, sums, ir.Constant(INDEX, first), size)
        if not taps:
            with self.loop(self.arguments["length"], window) as tap:
                self._emit_window(starts, sums, tap, window)

    def _emit_window(self, starts: list[Any], sums: list[list[Any]], first: Any, size: int) -> None:
        """Emit the products of `size` taps from index `first` on; see `_emit_products`."""
        b, vectors, columns = self.b, self.shape.vectors, self.shape.columns
        offsets = [self._load_offset("taps", first, t) for t in range(size)]
        tap_bytes = 4 * self.target.lanes * vectors * columns
        weights = self.element_address(self.arguments["weight"], first, tap_bytes)
        for p, start in enumerate(starts):
            totals = list(chain.from_iterable(sums[p * columns : (p + 1) * columns]))
            if self.target.has_memory_operands and len(totals) > 1:
                weights = self._hide(weights)
            places = [b.add(start, offset) for offset in offsets]
            if self.shape.operands == "bytes":
                self._emit_byte_window(places, weights, totals)
                continue
            for t, place in enumerate(places):
                inputs = self._load_inputs(place) * columns
                for v, (x, total) in enumerate(zip(inputs, totals, strict=True)):
                    w = self._load_weight(weights, t * len(totals) + v)
                    b.store(self._emit_dot(b.load(total), x, w), total)

    def _emit_byte_window(self, places: list[Any], weights: Any, totals: list[Any]) -> None:
        """Emit the products of the taps of a window for one pixel, added to its sums `totals`.

        `places` are the addresses of the inputs of the taps, `weights` that of their weights.
        """
        words: list[Any] = [None] * len(totals)
        for t, place in enumerate(places):
            for v, x in enumerate(self._load_inputs(place) * self.shape.columns):
                w = self._load_weight(weights, t * len(totals) + v)
                words[v] = self._emit_byte_products(words[v], x, w)
        ones = self.constant(1 << 16 | 1)
        for total, word in zip(totals, words, strict=True):
            self.b.store(self._emit_pairs_dot(self.b.load(total), word, ones), total)

    def _hide(self, address: Any) -> Any:
        """Emit a copy of an address that LLVM does not know to be equal to it; return the copy.

        What is loaded from it is an operand in memory where it is used, not a value in a register.
        """
        kind = ir.FunctionType(INDEX, [INDEX])
        return self.b.call(ir.InlineAsm(kind, "", "=r,0"), [address])

    def _load_offset(self, name: str, first: Any, index: int) -> Any:
        """Emit the load of element `first` + `index` of the int32 table `name`; return it."""
        address = self.element_address(self.arguments[name], first, 4)
        return self.b.sext(self.load(self.add_offset(address, 4 * index), DWORD), INDEX)

    def _load_weight(self, address: Any, index: int) -> Any:
        """Emit the load of vector `index` of the weights at `address`; return it."""
        return self.load(self.add_offset(address, 4 * self.target.lanes * index), self.vector)

    def _load_inputs(self, address: Any) -> list[Any]:
        """Emit the loads of the dwords at an address for each vector of outputs; return them."""
        vectors, size = self.shape.vectors, 4 * self.target.lanes
        if not self.shape.per_lane:
            return [self.splat(self.load(address, DWORD))] * vectors
        return [self.load(self.add_offset(address, size * v), self.vector) for v in range(vectors)]

    def _emit_byte_products(self, total: Any, x: Any, w: Any) -> Any:
        """Emit the products of the unsigned bytes of x and the bytes of w, neighbours added.

        Returns dwords of two words each, added to those of `total` unless that is None.
        """
        b, lanes = self.b, self.target.lanes
        bytes_, words = ir.VectorType(_BYTE, 4 * lanes), ir.VectorType(_WORD, 2 * lanes)
        multiply = self._declare_intrinsic(self.target.byte_intrinsic, words, [bytes_, bytes_])
        products = b.call(multiply, [b.bitcast(x, bytes_), b.bitcast(w, bytes_)])
        if total is not None:
            products = b.add(b.bitcast(total, words), products)
        return b.bitcast(products, self.vector)

    def _emit_dot(self, total: Any, x: Any, w: Any) -> Any:
        """Emit total plus the sums of products of the dwords of x and w, lane by lane; return it.

        A dword has four bytes, or two words if the operands are "pairs".
        """
        if self.shape.operands == "pairs":
            return self._emit_pairs_dot(total, x, w)
        name, lanes = self.target.dot_intrinsics[self.shape.operands], self.target.lanes
        operand = (
            ir.VectorType(_BYTE, 4 * lanes) if self.shape.operands == "signed" else self.vector
        )
        dot = self._declare_intrinsic(name, self.vector, [self.vector, operand, operand])
        return self.b.call(dot, [total, self.b.bitcast(x, operand), self.b.bitcast(w, operand)])

    def _emit_pairs_dot(self, total: Any, x: Any, w: Any) -> Any:
        """Emit total plus the products of the pairs of words in the dwords of x and w; return it.

        It takes two multiplications if the target splits word products, else its dot intrinsic,
        else a sequence of instructions that LLVM recognizes.
        """
        b, lanes = self.b, self.target.lanes
        if self.target.splits_word_products:
            low_x, low_w = (self._extract_words(v, left=True) for v in (x, w))
            partial = b.add(total, b.mul(low_x, low_w))
            high_x, high_w = (self._extract_words(v) for v in (x, w))
            return b.add(partial, b.mul(high_x, high_w))
        words = ir.VectorType(_WORD, 2 * lanes)
        word_x, word_w = b.bitcast(x, words), b.bitcast(w, words)
        name = self.target.dot_intrinsics.get("pairs")
        if name is not None:
            pairs = self._declare_intrinsic(name, self.vector, [words, words])
            return b.add(total, b.call(pairs, [word_x, word_w]))
        # LLVM recognizes x86's oldest dot instruction in this sequence
        dwords = ir.VectorType(DWORD, 2 * lanes)
        product = b.mul(b.sext(word_x, dwords), b.sext(word_w, dwords))
        even_lanes = ir.Constant(self.vector, [2 * lane for lane in range(lanes)])
        odd_lanes = ir.Constant(self.vector, [2 * lane + 1 for lane in range(lanes)])
        even = b.shuffle_vector(product, product, even_lanes)
        odd = b.shuffle_vector(product, product, odd_lanes)
        return b.add(total, b.add(even, odd))

    def _extract_words(self, x: Any, left: bool = False) -> Any:
        """Emit the sign-extended upper word of every dword of x; with `left` the lower word."""
        sixteen = self.splat(ir.Constant(DWORD, 16))
        return self.b.ashr(self.b.shl(x, sixteen) if left else x, sixteen)

    def _emit_stores(self, first: Any, sums: list[list[Any]]) -> None:
        """Emit the rescale and the stores of the pixels that exist, without lanes beyond `count`.

        `first` is the index of the first of the P pixels, `sums` [P][V] their accumulators. Where
        no pixel and no lane is left out, vectors of narrow outputs are saturated together.
        """
        b, shape, arguments = self.b, self.shape, self.arguments
        saturates_last = shape.form[-1:] in (("shift",), ("high",))
        if not (shape.bits < 32 and saturates_last and len(sums) * len(sums[0]) > 1):
            self._emit_partial_stores(first, sums)
            return
        last = b.add(first, ir.Constant(INDEX, len(sums) // shape.columns - 1))
        outputs = ir.Constant(INDEX, len(sums[0]) * self.target.lanes)
        is_full = b.and_(
            b.icmp_signed("<", last, arguments["pixels"]),
            b.icmp_signed(">=", arguments["count"], outputs),
        )
        with b.if_else(is_full, likely=True) as (full, partial):
            with full:
                self._emit_full_stores(first, sums)
            with partial:
                self._emit_partial_stores(first, sums)

    def _emit_full_stores(self, first: Any, sums: list[list[Any]]) -> None:
        """Emit the rescale and the stores of all lanes of all pixels; see `_emit_stores`.

        Instructions that saturate narrow two vectors at a time, and one vector of narrow outputs is
        clamped where there were four or two.
        """
        b, lanes, size = self.b, self.target.lanes, self.shape.bits // 8
        totals, addresses = [], []
        for p, row in enumerate(sums):
            out = self._pixel_address(first, p)
            for v, total in enumerate(row):
                totals.append(
                    self.emit_stages(b.load(total), self.shape.form, self._form, clamps_last=False)
                )
                addresses.append(self.add_offset(out, size * lanes * v))
        together = 4 // size
        for start in range(0, len(totals), together):
            values = self._narrow_together(totals[start : start + together])
            first, end = start, min(start + together, len(totals))
            while first < end:  # vectors of one pixel are neighbours
                last = min(end, first + len(sums[0]) - first % len(sums[0]))
                places = range(lanes * (first - start), lanes * (last - start))
                order = ir.Constant(ir.VectorType(DWORD, len(places)), list(places))
                part = b.shuffle_vector(values, values, order)
                pointer = b.inttoptr(addresses[first], part.type.as_pointer())
                b.store(part, pointer).align = 1
                first = last

    def _narrow_together(self, totals: list[Any]) -> Any:
        """Emit int32 vectors joined, saturated to the outputs' width and clamped by the form."""
        b, bits = self.b, self.shape.bits
        while len(totals) & (len(totals) - 1):
            totals = [*totals, totals[-1]]
        while len(totals) > 1:
            count = 2 * totals[0].type.count
            places = ir.Constant(ir.VectorType(DWORD, count), list(range(count)))
            pairs = zip(totals[::2], totals[1::2], strict=True)
            totals = [b.shuffle_vector(x, y, places) for x, y in pairs]
        (joined,) = totals
        count, top = joined.type.count, 1 << (bits - 1)
        low, high = (ir.Constant(joined.type, [value] * count) for value in (-top, top - 1))
        narrow = ir.VectorType(ir.IntType(bits), count)
        values = b.trunc(self.clamp(joined, low, high), narrow)
        first_lane = ir.Constant(ir.VectorType(DWORD, count), [0] * count)
        bounds = []
        for name in ("low", "high"):
            bound = b.trunc(self._form[-1][name], ir.VectorType(narrow.element, self.target.lanes))
            bounds.append(b.shuffle_vector(bound, bound, first_lane))
        return self.clamp(values, *bounds)

    def _pixel_address(self, first: Any, row: int) -> Any:
        """Emit the address of the first output of a row of sums; return it.

        The pixels of the rows are those from index `first` on.
        """
        b, step = self.b, self.arguments["step"]
        index, column = divmod(row, self.shape.columns)
        if self.shape.columns == 1:
            element = b.mul(b.add(first, ir.Constant(INDEX, index)), step)
        else:
            element = self._load_offset("places", first, index)
            element = b.add(element, step) if column else element
        return self.element_address(self.arguments["out"], element, self.shape.bits // 8)

    def _emit_partial_stores(self, first: Any, sums: list[list[Any]]) -> None:
        """Emit the rescale and the stores of pixels and lanes that exist; see `_emit_stores`."""
        lanes, kind = self.target.lanes, ir.IntType(self.shape.bits)
        narrow = ir.VectorType(kind, lanes)
        for p, row in enumerate(sums):
            pixel = self.b.add(first, ir.Constant(INDEX, p // self.shape.columns))
            with self.b.if_then(
                self.b.icmp_signed("<", pixel, self.arguments["pixels"]), likely=True
            ):
                out = self._pixel_address(first, p)
                for v, total in enumerate(row):
                    value = self.emit_rescale(self.b.load(total), self._form)
                    address = self.b.inttoptr(
                        self.add_offset(out, lanes * v * self.shape.bits // 8), narrow.as_pointer()
                    )
                    remaining = self.b.sub(self.arguments["count"], ir.Constant(INDEX, lanes * v))
                    self.store_lanes(value, address, remaining)

    def store_lanes(self, value: Any, address: Any, count: Any) -> None:
        """Emit the store of the first `count` lanes of `value`, or of all if there are fewer.

        `address`, a pointer, need not be aligned.
        """
        lanes = self.target.lanes
        is_full = self.b.icmp_signed(">=", count, ir.Constant(INDEX, lanes))
        with self.b.if_else(is_full) as (full_vector, partial_vector):
            with full_vector:
                self.b.store(value, address).align = 1
            with partial_vector:
                lane_indices = ir.Constant(self.vector, list(range(lanes)))
                mask = self.b.icmp_signed("<", lane_indices, self.splat(self.b.trunc(count, DWORD)))
                kinds = [value.type, address.type, DWORD, mask.type]
                name = f"llvm.masked.store.v{lanes}i{value.type.element.width}.p0"
                call = self._declare_intrinsic(name, ir.VoidType(), kinds)
                self.b.call(call, [value, address, ir.Constant(DWORD, 1), mask])

    def load_form(self) -> list[dict[str, Any]]:
        """Emit the loads of the rescale form into all lanes; return the values of each stage.

        Lanes have 32 bits, but 64 for `half` of "high", and for all of "scale" but limit and
        multiplier.
        """
        stages = []
        for index, name in enumerate(self.shape.form):
            narrow = FORM_VALUES[:2] if name == "scale" else FORM_VALUES
            values = {}
            for position, field in enumerate(FORM_VALUES):
                offset = 8 * (len(FORM_VALUES) * index + position)
                value = self.load(self.add_offset(self.arguments["form"], offset), INDEX)
                is_narrow = field in narrow and not (name == "high" and field == "half")
                values[field] = self.splat(self.b.trunc(value, DWORD) if is_narrow else value)
            stages.append(values)
        return stages

    def emit_rescale(self, total: Any, stages: Sequence[dict[str, Any]]) -> Any:
        """Emit the outputs, of the tile's bits, of a vector of sums; `stages`: see `load_form`."""
        total = self.emit_stages(total, self.shape.form, stages)
        if self.shape.bits == 32:
            return total
        return self.b.trunc(total, ir.VectorType(ir.IntType(self.shape.bits), self.target.lanes))

    def emit_stages(
        self,
        total: Any,
        names: Sequence[str],
        stages: Sequence[dict[str, Any]],
        clamps_last: bool = True,
    ) -> Any:
        """Emit stages of a rescale of an int32 vector one after the other; return it as int32.

        `names` are "shift", which works in 32-bit lanes, and "scale" and "high", which multiply in
        64-bit ones; `stages` are their values as `load_form` returns them. Without `clamps_last`
        the result of the last stage is not clamped, unless that is "scale".
        """
        b = self.b
        for index, (name, c) in enumerate(zip(names, stages, strict=True)):
            if name != "shift":
                total = self.clamp(total, b.sub(self.constant(0), c["limit"]), c["limit"])
            if name == "high":
                products = self.multiply(total, c["multiplier"])
                total = b.ashr(self.get_upper_halves(products, c["half"]), c["shift"])
            elif name == "shift":
                total = b.ashr(b.add(total, c["half"]), c["shift"])
            else:
                wide = ir.VectorType(INDEX, self.target.lanes)
                product = b.mul(b.sext(total, wide), b.sext(c["multiplier"], wide))
                shifted = b.ashr(b.add(product, c["half"]), c["shift"])
                total = b.trunc(self.clamp(shifted, c["low"], c["high"]), self.vector)
                continue
            if clamps_last or index + 1 < len(stages):
                total = self.clamp(total, c["low"], c["high"])
        return total

    def multiply(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Emit the 64-bit products of int32 vectors in two halves; return them.

        The first half has the lanes of even index if the target multiplies these in one
        instruction, else the first lanes. `join_halves` puts their dwords in order again.
        """
        b, count = self.b, self.target.lanes // 2
        wide = ir.VectorType(INDEX, count)
        if self.target.multiplies_even_lanes:
            whole = ir.Constant(wide, [32] * count)
            x, y = b.bitcast(x, wide), b.bitcast(y, wide)
            even = [b.ashr(b.shl(v, whole), whole) for v in (x, y)]
            return b.mul(*even), b.mul(b.ashr(x, whole), b.ashr(y, whole))
        halves = []
        for first in (0, count):
            lanes = ir.Constant(ir.VectorType(DWORD, count), list(range(first, first + count)))
            halves.append(b.mul(*(b.sext(b.shuffle_vector(v, v, lanes), wide) for v in (x, y))))
        return halves[0], halves[1]

    def get_upper_halves(self, products: tuple[Any, Any], addend: Any = None) -> Any:
        """Emit the upper dwords of `products` plus int64 `addend`, a splat of all lanes."""
        return self.join_halves(*self._add_to_halves(products, addend), 32)

    def shift_products(self, products: tuple[Any, Any], shift: int, addend: int = 0) -> Any:
        """Emit (products + addend) >> shift modulo 2^32, for 0 <= shift <= 32; return it.

        `products` are those of `multiply`.
        """
        constant = self.constant(addend, INDEX) if addend else None
        return self.join_halves(*self._add_to_halves(products, constant), shift)

    def add_products(self, x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
        """Emit the sums of products as of `multiply`, in 64 bits; return them."""
        return self.b.add(x[0], y[0]), self.b.add(x[1], y[1])

    def saturate_products(self, products: tuple[Any, Any], shift: int = 0, addend: int = 0) -> Any:
        """Emit (products + addend) >> shift saturated to 32 bits, for 0 <= shift < 32; return it.

        `products` are those of `multiply`. A result fits if all bits above it equal its sign.
        """
        b, sign_shift = self.b, self.constant(31)
        low = self.shift_products(products, shift, addend)
        upper = self.shift_products(products, 32, addend)
        fits = b.icmp_signed("==", b.ashr(upper, self.constant(shift)), b.ashr(low, sign_shift))
        limit = b.xor(b.ashr(upper, sign_shift), self.constant((1 << 31) - 1))
        return b.select(fits, low, limit)

    def _add_to_halves(self, halves: tuple[Any, Any], addend: Any) -> tuple[Any, Any]:
        """Emit halves + addend, an int64 splat of all lanes, or None for 0; return them."""
        if addend is None:
            return halves
        count = self.target.lanes // 2
        lanes = ir.Constant(ir.VectorType(DWORD, count), list(range(count)))
        half = self.b.shuffle_vector(addend, addend, lanes)
        return self.b.add(halves[0], half), self.b.add(halves[1], half)

    def join_halves(self, first: Any, second: Any, shift: int) -> Any:
        """Emit bits shift..shift + 31 of 64-bit lanes, in the order of an int32 vector.

        `first` and `second` are halves as of `multiply`; 0 <= shift <= 32.
        """
        b, count = self.b, self.target.lanes // 2

        def move(v: Any, right: int) -> Any:
            """Emit v shifted right logically by `right` bits, or left by `-right`."""
            if right == 0:
                return v
            amount = ir.Constant(v.type, [abs(right)] * count)
            return b.lshr(v, amount) if right > 0 else b.shl(v, amount)

        if not self.target.multiplies_even_lanes:
            narrow = ir.VectorType(DWORD, count)
            halves = [b.trunc(move(v, shift), narrow) for v in (first, second)]
            lanes = ir.Constant(self.vector, list(range(2 * count)))
            return b.shuffle_vector(*halves, lanes)
        even, odd = (
            b.bitcast(v, self.vector) for v in (move(first, shift), move(second, shift - 32))
        )
        # lane i of `even` for even i, of `odd` for odd i
        lanes = ir.Constant(self.vector, [i + 2 * count * (i % 2) for i in range(2 * count)])
        return b.shuffle_vector(even, odd, lanes)

    def permute(self, values: Any, index: Any) -> Any:
        """Emit the vector whose lane i is lane index[i] of `values`, 32 bits each; return it.

        The instruction set has a `permute_intrinsic`, which ignores the upper bits of an index.
        """
        name = self.target.permute_intrinsic
        function = self._declare_intrinsic(name, self.vector, [self.vector, self.vector])
        return self.b.call(function, [values, index])

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        """Emit min(max(value, low), high) of signed vectors and return it."""
        value = self.b.select(self.b.icmp_signed(">", value, low), value, low)
        return self.b.select(self.b.icmp_signed("<", value, high), value, high)

    # ---- helpers ---------------------------------------------------------------------------------

    @contextmanager
    def loop(self, count: Any, step: int, first: Any = None) -> Iterator[Any]:
        """Emit a loop over first, first + step, .. < count; its body is written in the context.

        Yields the loop index, which after the loop is the first one that was left out. `first` is 0
        by default.
        """
        b, start = self.b, self.b.block
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(INDEX)
        index.add_incoming(ir.Constant(INDEX, 0) if first is None else first, start)
        b.cbranch(b.icmp_signed("<", index, count), body, end)
        b.position_at_end(body)
        yield index
        index.add_incoming(b.add(index, ir.Constant(INDEX, step)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def _declare_intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Return LLVM's intrinsic with these result and argument types, declared at first use."""
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def constant(self, value: int, kind: ir.IntType = DWORD) -> Any:
        """Return a vector constant of `kind` with `value` in every lane."""
        return ir.Constant(ir.VectorType(kind, self.target.lanes), [value] * self.target.lanes)

    def add_saturated(self, x: Any, y: Any) -> Any:
        """Emit x + y of vectors of signed integers, saturated to their width; return it."""
        kind = x.type
        name = f"llvm.sadd.sat.v{kind.count}i{kind.element.width}"
        return self.b.call(self._declare_intrinsic(name, kind, [kind, kind]), [x, y])

    def multiply_upper_words(self, x: Any, y: Any) -> Any:
        """Emit x * y >> 16 of vectors of 16-bit lanes; return it."""
        return self._call_avx2("pmulh.w", x.type, x, y)

    def permute_bytes(self, values: Any, control: Any) -> Any:
        """Emit the bytes of `values` at indices `control`, 16 by 16; return vectors of words."""
        kind = ir.VectorType(_BYTE, 4 * self.target.lanes)
        values, control = (self.b.bitcast(v, kind) for v in (values, control))
        permuted = self._call_avx2("pshuf.b", kind, values, control)
        return self.b.bitcast(permuted, ir.VectorType(_WORD, 2 * self.target.lanes))

    def pack_words(self, x: Any, y: Any) -> Any:
        """Emit two int32 vectors saturated to 16 bits; return them, in turn by four lanes."""
        return self._call_avx2("packssdw", ir.VectorType(_WORD, 2 * self.target.lanes), x, y)

    def add_word_products(self, x: tuple[Any, Any], y: tuple[Any, Any]) -> list[Any]:
        """Emit x[0] * y[0] + x[1] * y[1] of vectors of `pack_words`; return two int32 vectors."""
        sums = []
        for first in (0, 4):
            order = [first + i % 4 + i // 4 * 8 for i in range(8)]  # the inverse of `pack_words`
            lanes = list(chain.from_iterable((i, i + 16) for i in order))
            indices = ir.Constant(ir.VectorType(DWORD, len(lanes)), lanes)
            operands = [self.b.shuffle_vector(*pair, indices) for pair in (x, y)]
            sums.append(self._call_avx2("pmadd.wd", self.vector, *operands))
        return sums

    def _call_avx2(self, name: str, result: Any, x: Any, y: Any) -> Any:
        """Emit the call of an intrinsic of AVX2 with two operands; return its result."""
        call = self._declare_intrinsic(f"llvm.x86.avx2.{name}", result, [x.type, y.type])
        return self.b.call(call, [x, y])

    def round_shift_right(self, value: Any, shift: int) -> Any:
        """Emit value >> shift, rounded half up, without leaving the lanes' width; return it."""
        if not shift:
            return value
        kind = value.type.element
        one, before = self.constant(1, kind), self.constant(shift - 1, kind)
        return self.b.ashr(self.b.add(self.b.ashr(value, before), one), one)

    def round_half_up(self, value: Any, shift: int) -> Any:
        """Emit (value + half) >> shift for int32 vectors, where the sum fits; return it."""
        return self.b.ashr(self.b.add(value, self.constant(1 << (shift - 1))), self.constant(shift))

    def narrow_lanes(self, value: Any) -> Any:
        """Emit the lower words of a splat of 32-bit lanes, in twice as many lanes; return them."""
        words = ir.VectorType(_WORD, 2 * self.target.lanes)
        order = ir.Constant(ir.VectorType(DWORD, words.count), [0] * words.count)
        return self.b.shuffle_vector(
            self.b.bitcast(value, words), self.b.bitcast(value, words), order
        )

    def add_offset(self, address: Any, offset: int) -> Any:
        """Emit address + offset, a constant number of bytes; `address` itself for offset 0."""
        return self.b.add(address, ir.Constant(INDEX, offset)) if offset else address

    def element_address(self, address: Any, index: Any, size: int) -> Any:
        """Emit address + index * size, the address of an element of `size` bytes."""
        return self.b.add(address, self.b.mul(index, ir.Constant(INDEX, size)))

    def load(self, address: Any, kind: Any) -> Any:
        """Emit the load of a value of type `kind` from an unaligned address; return the value."""
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = 1
        return value

    def splat(self, value: Any) -> Any:
        """Emit a vector with `value` in every lane; return it."""
        kind = ir.VectorType(value.type, self.target.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(undefined, value, ir.Constant(DWORD, 0))
        return self.b.shuffle_vector(
            first, undefined, ir.Constant(self.vector, [0] * self.target.lanes)
        )
