"""The loop IR: typed scalar loops over flat buffers. Closed: these nodes and no others.

In: built by the lowerings (hloc/kernels/lower.py). Out: printed by the C-family printer. Printers never see HLO;
kernels never see C or CUDA syntax. A kernel that adds two arrays of 4,096 f32:

    Kernel("add", (Buffer("a", "f32", 4096), Buffer("b", "f32", 4096), Buffer("out", "f32", 4096, "write")),
      (For("i", 4096, PARALLEL, (Store("out", Var("i", INDEX), Apply("add", (Load("a", i), Load("b", i)), "f32")),)),))

Rules (hloc/kernels/verify.py checks them)
- Expressions are pure. Types are HLO element types, or INDEX (a 64-bit signed integer for positions and loop counters).
- Load and Store take one flat position in elements. Storage types narrower than a computation type (bf16, f16, f8*,
  s4 ...) are loaded and selected as they are: arithmetic on them goes through Apply("convert", ...) to f32 (or s32)
  and back, put there by the lowering, so that printers have no rounding rules of their own.
- A sum of multiples of INDEX is one Apply("sum", atoms, INDEX, (the factor of each atom ..., constant)), with the atoms
  by falling factors: no two alike, none of them a sum or a constant. So positions are affine forms as they stand
  (kernels/affine.py). `indexing.sum_of` and `index_apply` make them; INDEX has no other addition, and `multiply` is of
  two atoms.
- Apply names an op: for HLO element types a scalar function of hloc/targets/c/scalar.h ("add", "tanh", "compare_lt",
  "convert", "select" ...); for INDEX the arithmetic of INDEX_OPS. `convert`'s source type is its argument's type;
  between INDEX and s32/s64/u32... `convert` is a plain cast.
- A kernel body is a list of statements with at most one PARALLEL For, outermost; its iterations are independent.
  On a CPU the pool splits it, on a GPU threads or teams of them share its iterations.
- A VECTOR loop is innermost (or holds only straight-line code and Ifs), its iterations are independent or feed
  accumulators marked as `reassociable`; the C printer puts `omp simd` (with a reduction clause) on it.
- A type may be a vector (hloc/kernels/vectors.py), like f32x16. Its Load and Store take adjacent elements; an Apply
  works on all lanes, or across lanes. Passes for CPUs make vectors, lowerings do not.
"""
from __future__ import annotations

import math
from typing import Any, NamedTuple, Union

INDEX = "index"
SUM = "sum"
INDEX_OPS = frozenset([SUM, "multiply", "divide", "remainder", "minimum", "maximum", "compare_eq",
                       "compare_ne", "compare_lt", "compare_le", "compare_gt", "compare_ge", "select", "opaque"])

PARALLEL, SERIAL, VECTOR = "parallel", "serial", "vector"


def _signs(value: int | float | bool | complex) -> tuple[float, ...]:
    if isinstance(value, complex):
        return math.copysign(1, value.real), math.copysign(1, value.imag)
    return (math.copysign(1, value),)


class Const(NamedTuple):
    """A scalar constant: int for integers and INDEX, bool for pred, float for floats (f64 precision; nan/inf allowed;
    for bf16/f16/f8 the value is exactly representable), complex for complex types. 0 and -0 are not equal: kernels,
    schedules and texts of equal expressions are made once."""

    value: int | float | bool | complex
    type: str

    def __eq__(self, other: object) -> bool:
        if tuple.__eq__(self, other) is not True:
            return False
        return self[0] != 0 and not isinstance(self[0], complex) or _signs(self[0]) == _signs(other[0])     # type: ignore

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def integer(self) -> int:
        """The value of a constant of an integer type or INDEX."""
        assert not isinstance(self.value, (float, complex)), self
        return int(self.value)

    @property
    def real(self) -> float:
        """The value of a constant that is not complex."""
        assert not isinstance(self.value, complex), self
        return self.value


class Var(NamedTuple):
    """A loop counter, a Let or a Mutable, by name."""

    name: str
    type: str


class Load(NamedTuple):
    """buffer[position]; `type` is the buffer's element type."""

    buffer: str
    position: Expr
    type: str


class Apply(NamedTuple):
    """A pure operation; `immediate` holds compile-time integers (reduce_precision's bit counts, the factors and
    the constant of a sum)."""

    op: str
    arguments: tuple[Expr, ...]
    type: str
    immediate: tuple[int, ...] = ()


Expr = Union[Const, Var, Load, Apply]


class Let(NamedTuple):
    """A name for a value that does not change."""

    name: str
    value: Expr


class Mutable(NamedTuple):
    """A variable that Assign may change; `reassociable` names the op ("add", "maximum" ...) when a VECTOR loop may
    reorder its updates."""

    name: str
    initial: Expr
    reassociable: str = ""


class Assign(NamedTuple):
    """Assign a new value to a Mutable."""

    name: str
    value: Expr


class Store(NamedTuple):
    """buffer[position] = value; the value has the buffer's element type."""

    buffer: str
    position: Expr
    value: Expr


class For(NamedTuple):
    """for (name = 0; name < extent; name++). PARALLEL extents are constants; others may be INDEX expressions."""

    name: str
    extent: int | Expr
    kind: str
    body: tuple[Stmt, ...]

    @property
    def trip_count(self) -> int:
        """The extent of a loop whose extent is a constant."""
        assert isinstance(self.extent, int), self.extent
        return self.extent


class While(NamedTuple):
    """while (condition) body; for searches and data-dependent loops."""

    condition: Expr
    body: tuple[Stmt, ...]


class If(NamedTuple):
    """if (condition) then else otherwise; the condition is a pred or INDEX comparison."""

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


class Local(NamedTuple):
    """A private array of one iteration of the PARALLEL loop (stack or registers); used by Load/Store under its name."""

    name: str
    type: str
    size: int


class Shared(NamedTuple):
    """An array shared by the threads of a block (GPU only)."""

    name: str
    type: str
    size: int


class Barrier(NamedTuple):
    """A barrier for all threads of a block (GPU only)."""


class Atomic(NamedTuple):
    """buffer[position] = op(buffer[position], value), indivisibly where iterations are concurrent."""

    op: str
    buffer: str
    position: Expr
    value: Expr


class Last(NamedTuple):
    """The body runs in the last of the `count` PARALLEL iterations of a group to get here (GPU only): it sees what the
    others have stored before. position: the number of the group, less than `groups`."""

    position: Expr
    groups: int
    count: int                      # type: ignore[assignment]      # hides tuple.count, which nothing calls
    body: tuple[Stmt, ...]


Stmt = Union[Let, Mutable, Assign, Store, For, While, If, Local, Shared, Barrier, Atomic, Last]


class Buffer(NamedTuple):
    """A kernel parameter: a flat array. access: read, write (every element is written or unspecified), update. fetched:
    so many of its bytes are fetched before the kernel waits for the one before it (cuda/early_start.py)."""

    name: str
    type: str
    size: int
    access: str = "read"
    fetched: int = 0


class Cost(NamedTuple):
    """The memory traffic and the operations of one run of a kernel, for schedules, reports and the choice of
    threads."""

    bytes: int = 0
    flops: int = 0


class Kernel(NamedTuple):
    """A function over buffers. `origin`: the HLO lines that it computes (printed as escaped comments); `made`: the
    HLO instructions of the elements that names of the body stand for.

    Kernels with the same `structure()` share one function in the emitted source.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    cost: Cost = Cost()
    origin: tuple[str, ...] = ()
    made: tuple[tuple[str, str], ...] = ()

    def structure(self) -> tuple:
        """The parts that define the code: everything but name, cost, origin and made."""
        return (self.buffers, self.body)


class Prologue(NamedTuple):
    """An operand of a matmul or convolution that is computed while the tile is loaded.

    operand      "lhs" or "rhs", in place of the buffer with that name; type: of its elements
    statements   Lets over the INDEX Vars outer, inner (the batch), row (of rhs: its column) and depth
    value        the element at that place
    origin       the HLO lines that it computes
    """

    operand: str
    type: str
    statements: tuple[Let, ...]
    value: Expr
    origin: tuple[str, ...] = ()


class Update(NamedTuple):
    """Lines that an attention stores into its keys or values, and reads as if they had been there.

    array        the buffer, which is also a result: "key" or "value"
    source       the buffer that has the lines; lines: how many, from the line `first` of each batch on
    layout       of the source: (offset, line, element, (batch strides)), as that of the array
    statements   Lets; the last one is of "first", an INDEX between 0 and the number of the array's lines less these
    """

    array: str
    source: str
    lines: int
    layout: tuple
    statements: tuple[Stmt, ...]


class Tile(NamedTuple):
    """A kernel made from a hand-written template instead of loops: matrix products, attention, convolutions ...

    library_kernel   "gemm", "attention", "sort" ...; each target has a template for it or refuses it by name
    buffers      as for Kernel; the template knows their order
    parameters   the template's compile-time facts, as (name, value) with int, str, tuple values
    epilogue     for products: statements that turn Var("acc", type) at INDEX Vars batch, row, column into Stores
                 (convolution: row is the output position, column the output feature); () stores acc itself.
                 attention: see attention/attention.py
    comparator   for sorts: (parameter names, statements, result) of the scalar comparison
    prologues    for products on a GPU: operands that are no buffers
    updates      for attention on a GPU: keys and values that it stores first
    """

    name: str
    library_kernel: str
    buffers: tuple[Buffer, ...]
    parameters: tuple[tuple[str, Any], ...]
    epilogue: tuple[Stmt, ...] = ()
    comparator: tuple | None = None
    cost: Cost = Cost()
    origin: tuple[str, ...] = ()
    prologues: tuple[Prologue, ...] = ()
    updates: tuple[Update, ...] = ()

    def structure(self) -> tuple:
        return (self.library_kernel, self.buffers, self.parameters, self.epilogue, self.comparator,
                tuple(p._replace(origin=()) for p in self.prologues), self.updates)
