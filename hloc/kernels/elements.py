"""The element generator: the expression of one element of an instruction at a multi-index.

In: an instruction and an Index per dimension. Out: a loop IR expression in computation form (scalars.py); the Builder
binds the values that it needs, once per (instruction, index). `sources` defines how existing instructions are read:
parameters are loads, a finished reduce is its accumulator. `parameter` creates the source of one on its first use: a
kernel reads a few of the arrays of a large fusion.

    elements = Elements(builder, {p0: read_buffer}, uses)
    elements.value(multiply, (i, j))      -> Apply("multiply", (Load("p0", ...), t3), "f32")

The element of an opcode is defined by a rule (rules/*.py): a generator function that yields (operand, index), receives
the operand's element, and returns its own. The loop here drives the rules with an explicit stack, so that deep graphs
need no deep recursion.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from hloc.analysis.cost import operations
from hloc.errors import UnsupportedError
from hloc.ir import Computation, Instruction
from hloc.kernels import scalars
from hloc.kernels.builder import Builder
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Load, Var

Indices = tuple[Index, ...]
Result = TypeVar("Result")
Asking = Generator[tuple[Instruction, Indices], Expr, Result]      # asks for elements, is sent them, returns a result
Steps = Asking[Expr]
Rule = Callable[["Elements", Instruction, Indices], Steps]
Source = Callable[[Indices], Expr]

LARGEST_INLINE = 10
COUNTED_TOGETHER = 3            # of a function without loads and stores
DEEPEST_CALL = 40               # Python's own stack allows about 1,000 frames, and a nested call takes some twenty


class Elements:
    """Elements of the instructions of one computation, within one kernel. `trace`: the requested elements and
    indices; `sums_in_lanes`: whether vectors may run along the terms of a dot's sum."""

    def __init__(self, builder: Builder, sources: Mapping[Instruction, Source], uses: Mapping[Instruction, int],
                 rules: Mapping[str, Rule], unrounded: frozenset[str] = frozenset(),
                 parameter: Callable[[Instruction], Source | None] = lambda _: None):
        self.builder = builder
        self.sources = dict(sources)
        self.parameter = parameter
        self.uses = uses
        self.rules = rules
        self.unrounded = unrounded
        self.serial = builder.fresh("computation")
        self.depth = 0
        self.sums_in_lanes = False
        self.trace: dict[Instruction, set[Indices]] = {}

    def value(self, instruction: Instruction, index: Sequence[Index]) -> Expr:
        """The element of `instruction` at `index`."""
        index = tuple(index)
        known = self.builder.known((self.serial, instruction, index))
        if known is not None:
            return known
        stack = [(instruction, index, self._start(instruction, index))]
        answer: Expr | None = None
        while stack:
            top, at, rule = stack[-1]
            try:
                operand, wanted = next(rule) if answer is None else rule.send(answer)
            except StopIteration as finished:
                stack.pop()
                answer = self._finish(top, at, finished.value)
                continue
            answer = self.builder.known((self.serial, operand, wanted))
            if answer is None:
                stack.append((operand, wanted, self._start(operand, wanted)))
        assert answer is not None
        return answer

    def drive(self, steps: Asking[Result]) -> Result:
        """The result of a generator that asks for elements."""
        answer: Expr | None = None
        while True:
            try:
                operand, index = next(steps) if answer is None else steps.send(answer)
            except StopIteration as finished:
                return finished.value
            answer = self.value(operand, index)

    def _start(self, instruction: Instruction, index: Indices) -> Steps:
        self.trace.setdefault(instruction, set()).add(index)
        source = self.sources.get(instruction)
        if source is None and (source := self.parameter(instruction)) is not None:
            self.sources[instruction] = source
        if source is not None:
            return _given(source(index))
        if any(d == 0 for d in instruction.shape.dimensions):                   # never read, only named
            return _given(Const(0, scalars.computation_type(instruction.shape.element_type)))
        rule = self.rules.get(instruction.opcode)
        if rule is None:
            raise UnsupportedError(f"'{instruction.opcode}' cannot be computed inside a kernel", instruction.span)
        return rule(self, instruction, index)

    def _finish(self, instruction: Instruction, index: Indices, value: Expr) -> Expr:
        """Bind a value that is used twice, is large, or can be computed outside of the current loop."""
        builder = self.builder
        if isinstance(value, (Apply, Load)):
            builder.operations += 1
            builder.work += max(1.0, operations(instruction) / COUNTED_TOGETHER)
            level = builder.level(value)
            outer = self._outer_arguments(value, level)
            if outer is not value:
                value, level = outer, builder.level(outer)
            shared = self.uses.get(instruction, 1) > 1
            if shared or builder.home(level) is not builder.block or size_of(value) > LARGEST_INLINE:
                value = builder.let(value)
        if self.depth == 0:
            self._note(value, instruction)
        builder.home(builder.level(value)).memo[self.serial, instruction, index] = value
        return value

    def _note(self, value: Expr, instruction: Instruction) -> None:
        """Record, for readers of the code, the first instruction of a name."""
        if isinstance(value, Var):
            self.builder.made.setdefault(value.name, instruction.name)

    def _outer_arguments(self, value: Expr, depth: int) -> Expr:
        """Bind arguments that belong to an outer loop there. depth: the level of the value."""
        if not isinstance(value, Apply):
            return value
        arguments = tuple(self._outer(a, depth) for a in value.arguments)
        return value if arguments == value.arguments else value._replace(arguments=arguments)

    def _outer(self, argument: Expr, depth: int) -> Expr:
        if argument.type == INDEX or not isinstance(argument, (Apply, Load)):
            return argument
        home, level = self.builder.home, self.builder.level(argument)
        if home(level) is not home(depth):
            return self.builder.let(argument)
        return self._outer_arguments(argument, level) if _is_conversion(argument) else argument

    # -- for rules ---------------------------------------------------------------------------------------------------

    def inline(self, computation: Computation, arguments: Sequence[Expr], where: Instruction,
               unrounded: frozenset[str] = frozenset()) -> list[Expr]:
        """The results of a scalar computation (a comparator, an update) applied to values in computation form."""
        inner = self.nested(computation, unrounded)
        inner.sources.update((p, always(a)) for p, a in zip(computation.parameters, arguments))
        roots = result_leaves(computation.root)
        if any(r.shape.dimensions for r in roots):
            raise UnsupportedError(f"'{where.opcode}' with a computation that is not scalar", where.span)
        return [inner.value(r, ()) for r in roots]

    def combined(self, where: Instruction, values: Sequence[Expr]) -> list[Expr]:
        """The reducer of `where` applied to accumulators and elements. Accumulators are not rounded in between: values
        that would be rounded to the types of the reducer's own parameters stay in f32. Other conversions round as
        written."""
        reducer = where.get("to_apply")
        for value in values:
            self._note(value, where)                          # accumulators: elements already have names
        return self.inline(reducer, values, where, frozenset(p.shape.element_type for p in reducer.parameters))

    def nested(self, computation: Computation, unrounded: frozenset[str] = frozenset()) -> Elements:
        """For the elements of a computation that is called here, within the same kernel."""
        if self.depth == DEEPEST_CALL:
            raise UnsupportedError(f"scalar computations nested deeper than {DEEPEST_CALL} levels", computation.span)
        inner = Elements(self.builder, {}, use_counts(computation), self.rules, unrounded | self.unrounded)
        inner.depth = self.depth + 1
        return inner


def result_leaves(root: Instruction) -> list[Instruction]:
    """The results of a scalar computation, one instruction each."""
    if root.opcode == "tuple":
        return root.operands
    if not root.shape.is_tuple:
        return [root]
    return [Instruction(f"{root.name}.{n}", "get-tuple-element", shape, [root], {"index": n}, span=root.span)
            for n, shape in enumerate(root.shape.tuple_shapes)]


def _is_conversion(value: Expr) -> bool:
    return isinstance(value, Apply) and value.op == "convert"


def elements_at(operands: Sequence[Instruction], index: Indices) -> Asking[list[Expr]]:
    """The elements of several arrays at one index; scalars have but one."""
    values: list[Expr] = []
    for operand in operands:
        value = yield operand, (index if operand.shape.rank else ())
        values.append(value)
    return values


def always(value: Expr) -> Source:
    """The source of a scalar."""
    return lambda index: value


def _given(value: Expr) -> Steps:
    """A rule that asks for nothing."""
    yield from ()
    return value


def size_of(value: Expr) -> int:
    """Nodes of an expression, up to a little over the limit for inline expressions."""
    count = 0
    stack = [value]
    while stack and count <= LARGEST_INLINE:
        top = stack.pop()
        count += not isinstance(top, (Var, Const))
        if isinstance(top, Apply):
            stack.extend(top.arguments)
    return count


def use_counts(computation: Computation) -> dict[Instruction, int]:
    """The number of reads of each instruction in its computation."""
    counts: dict[Instruction, int] = {}
    for instruction in computation.instructions:
        for operand in instruction.operands:
            counts[operand] = counts.get(operand, 0) + 1
    return counts
