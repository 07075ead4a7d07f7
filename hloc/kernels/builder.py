"""Builds the body of one kernel: nested blocks, names, and values bound as far out as allowed.

In: expressions and statements in the order in which lowerings emit them. Out: the statement tuple of a Kernel. A value
is bound (`let`) in the outermost block that knows all its variables, which hoists loop-invariant values; it never
leaves an enclosing `guard`, since it may be invalid to load outside of it.

    b = Builder()
    with b.loop(4096, PARALLEL) as i:
        b.store("out", i, Apply("add", (b.load("a", "f32", i), b.load("b", "f32", i)), "f32"))
    b.body()
"""
from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from hloc.kernels import indexing, ir
from hloc.kernels.indexing import Index
from hloc.kernels.walks import parts, walk

NEVER = ir.Const(0, "pred")            # a condition that is always false
UNBOUNDED = 1 << 62                     # of a counter of which is known only that it is not negative


@dataclass
class Block:
    """Statements under construction. `memo`: the values that are bound here; `guard`: whether the block may not run at
    all."""

    depth: int
    guard: bool = False
    statements: list[ir.Stmt] = field(default_factory=list)
    memo: dict = field(default_factory=dict)


class Builder:
    """One kernel body under construction. `divisions`, `accesses` and `loaded` record the requests, so that a trial run
    can choose the loops of the final one."""

    def __init__(self) -> None:
        self.chain: list[Block] = [Block(0)]
        self.levels: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.divisions: set[indexing.Atom] = set()
        self.accesses: list[tuple[str, Index]] = []
        self.loaded: set[str] = set()
        self.operations = 0
        self.work = 0.0                         # the same, with functions weighted by their cost
        self.mutables: set[str] = set()
        self.made: dict[str, str] = {}          # names of values -> the instruction of each element
        self.loads_first = False                # whether loads of a select are done before it, in both branches

    @property
    def block(self) -> Block:
        return self.chain[-1]

    def body(self) -> tuple[ir.Stmt, ...]:
        """The finished statements; all loops and guards are closed."""
        return tuple(self.chain[0].statements)

    def fresh(self, prefix: str) -> str:
        number = self.counts.get(prefix, 0)
        self.counts[prefix] = number + 1
        return f"{prefix}{number}"

    def append(self, statement: ir.Stmt) -> None:
        self.block.statements.append(statement)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _open(self, guard: bool = False) -> None:
        self.chain.append(Block(len(self.chain), guard))

    def _close(self) -> tuple[ir.Stmt, ...]:
        return tuple(self.chain.pop().statements)

    @contextmanager
    def loop(self, extent: int | ir.Expr, kind: str = ir.SERIAL, prefix: str = "i",
             high: int | None = None) -> Iterator[Index]:
        """A For; gives its counter. `high`: the greatest value of the counter where the extent is an expression."""
        if extent == 1:
            yield indexing.ZERO
            return
        name = self.fresh(prefix)
        self._open()
        self.levels[name] = self.block.depth
        greatest = extent - 1 if isinstance(extent, int) else UNBOUNDED if high is None else high
        yield indexing.bounded(name, 0, max(1, greatest))
        body = self._close()
        if body:                        # a window that contains only padding leaves no statements
            self.append(ir.For(name, extent, ir.SERIAL if kind == ir.VECTOR and has_loop(body) else kind, body))

    @contextmanager
    def guard(self, conditions: list[ir.Expr]) -> Iterator[None]:
        """Statements that run only if all conditions are true; without conditions, always."""
        if not conditions:
            yield
            return
        condition = NEVER if NEVER in conditions else reduce(lambda a, b: ir.Apply("and", (a, b), "pred"), conditions)
        self._open(guard=True)
        yield
        body = self._close()
        if body and condition != NEVER:
            self.append(ir.If(condition, body))

    @contextmanager
    def while_loop(self, condition: ir.Expr) -> Iterator[None]:
        """Statements that repeat while the condition is true, perhaps never."""
        self._open(guard=True)
        yield
        self.append(ir.While(condition, self._close()))

    @contextmanager
    def last(self, group: Index, groups: int, count: int) -> Iterator[None]:
        """Statements of the last of the `count` iterations of a group."""
        position = self.position(group)
        self._open(guard=True)
        yield
        self.append(ir.Last(position, groups, count, self._close()))

    def known(self, key: Hashable) -> Any:
        """What an open block has in its memo, the innermost one first; None if none has."""
        for block in reversed(self.chain):
            found = block.memo.get(key)
            if found is not None:
                return found
        return None

    # -- values ------------------------------------------------------------------------------------------------------

    def level(self, expr: ir.Expr) -> int:
        """Depth of the outermost block where all variables (and local arrays) of an expression are known."""
        return max([self.levels.get(e.name if isinstance(e, ir.Var) else e.buffer, 0) for e in parts((expr,))
                    if isinstance(e, (ir.Var, ir.Load))], default=0)

    def home(self, level: int) -> Block:
        """The block where a value of that level is bound: not outside of the innermost guard."""
        for block in reversed(self.chain):
            if block.guard or block.depth == level:
                return block
        return self.chain[0]

    def let(self, expr: ir.Expr, prefix: str = "t") -> ir.Var | ir.Const:
        """A name for a value, bound as far out as possible; names and constants stay themselves."""
        if isinstance(expr, (ir.Var, ir.Const)):
            return expr
        block = self.home(self.level(expr))
        name = self.fresh(prefix)
        self.levels[name] = block.depth
        block.statements.append(ir.Let(name, expr))
        return ir.Var(name, expr.type)

    def bind(self, expr: ir.Expr, prefix: str = "t") -> ir.Var | ir.Const:
        """A name in the current block for a value's current state, before an Assign changes its operands."""
        if isinstance(expr, ir.Const):
            return expr
        name = self.fresh(prefix)
        self.levels[name] = self.block.depth
        self.append(ir.Let(name, expr))
        return ir.Var(name, expr.type)

    def mutable(self, type: str, initial: ir.Expr, reassociable: str = "", prefix: str = "v") -> ir.Var:
        name = self.fresh(prefix)
        self.levels[name] = self.block.depth
        self.append(ir.Mutable(name, initial, reassociable))
        self.mutables.add(name)
        return ir.Var(name, type)

    def assign(self, variable: ir.Var, value: ir.Expr) -> None:
        self.append(ir.Assign(variable.name, value))

    def local(self, type: str, size: int, prefix: str = "row") -> str:
        """A private array; declared in the current block."""
        name = self.fresh(prefix)
        self.levels[name] = self.block.depth
        self.append(ir.Local(name, type, size))
        return name

    @contextmanager
    def pinned(self, names: Collection[str]) -> Iterator[None]:
        """While these variables or arrays change in the current block, values that read them are bound in it."""
        before = {name: self.levels.get(name, 0) for name in names}
        self.levels.update(dict.fromkeys(names, self.block.depth))
        yield
        self.levels.update(before)

    # -- positions ---------------------------------------------------------------------------------------------------

    def position(self, index: Index) -> ir.Expr:
        """The expression of an index; its divisions are hoisted out of the loops that do not change them."""
        return indexing.to_expr(self._without_divisions(index))

    def _without_divisions(self, index: Index) -> Index:
        if all(atom.kind == indexing.VARIABLE for atom, _ in index.terms):
            return index
        result = indexing.constant(index.constant)
        for atom, factor in index.terms:
            simple = Index(((atom, 1),)) if atom.kind == indexing.VARIABLE else self._bind_division(atom)
            result = indexing.add(result, indexing.scale(simple, factor))
        return result

    def _bind_division(self, atom: indexing.Atom) -> Index:
        self.divisions.add(atom)
        if (known := self.known(atom)) is not None:
            return known
        inner = self._without_divisions(atom.inner)
        expr = indexing.to_expr(Index(((atom._replace(inner=inner), 1),)))
        bound = self.bind_index(expr, atom.low, atom.high)
        self.home(self.level(ir.Var(bound.terms[0][0].name, ir.INDEX)) if bound.terms else 0).memo[atom] = bound
        return bound

    def bind_index(self, expr: ir.Expr, low: int, high: int) -> Index:
        """An INDEX expression with known bounds as an Index; a repeated one keeps its name."""
        if low >= high:
            return indexing.constant(low)
        key = expr, low, high
        if (known := self.known(key)) is not None:
            return known
        name = self.let(expr, "p")
        if isinstance(name, ir.Const):
            return indexing.constant(name.integer)
        bound = indexing.bounded(name.name, low, high)
        if isinstance(expr, ir.Apply) and self._stays(expr):
            self.home(self.levels[name.name]).memo[key] = bound
        return bound

    def _stays(self, expr: ir.Expr) -> bool:
        """Whether an expression reads neither memory nor assigned variables."""
        return not any(isinstance(e, ir.Load) or isinstance(e, ir.Var) and e.name in self.mutables
                       for e in parts([expr]))

    # -- memory ------------------------------------------------------------------------------------------------------

    def load(self, buffer: str, type: str, index: Index) -> ir.Load:
        self.accesses.append((buffer, index))
        self.loaded.add(buffer)
        return ir.Load(buffer, self.position(index), type)

    def store(self, buffer: str, index: Index, value: ir.Expr) -> None:
        self.append(ir.Store(buffer, self.position(index), value))


def within(index: Index, extent: int, builder: Builder) -> list[ir.Expr]:
    """The conditions for 0 <= index < extent that its bounds do not prove. The constant is on the other side, and
    the signs are flipped if all coefficients are negative, so that a loop's counter stands alone."""
    low, high = indexing.bounds(index)
    conditions: list[ir.Expr] = []
    if high < 0 or low >= extent:
        return [NEVER]
    moving = Index(index.terms)
    sign, from_least, below_limit = 1, "compare_ge", "compare_lt"
    if moving.terms and all(factor < 0 for _, factor in moving.terms):
        sign, from_least, below_limit = -1, "compare_le", "compare_gt"

    def ask(op: str, bound: int) -> None:
        place = builder.position(indexing.scale(moving, sign))
        conditions.append(ir.Apply(op, (place, ir.Const(sign * bound, ir.INDEX)), "pred"))
    if low < 0:
        ask(from_least, -index.constant)
    if high >= extent:
        ask(below_limit, extent - index.constant)
    return conditions


def has_loop(statements: tuple[ir.Stmt, ...]) -> bool:
    """Whether these statements contain a loop: then the loop around them cannot be a VECTOR loop."""
    return any(isinstance(s, (ir.For, ir.While)) for s in walk(statements))
