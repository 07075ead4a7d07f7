"""Spreads shardings over a Graph: from annotations forward and backward through ops, until nothing changes.

What an annotation says stays. Elsewhere a dimension only gains axes, behind those that it has. Ops that move and
compute elements come first, then products, reductions and windows, last what spreads small arrays over large ones: an
array that is only spread takes the sharding of what it meets.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.ir import Instruction
from hloc.passes.sharding_propagation.graph import Edge, Graph, Node
from hloc.sharding.factors import FactorAxes, dimension_axes, factor_axes, fits
from hloc.sharding.meshes import Axes, AxisSharding, DeviceMesh, replicated
from hloc.sharding.rules import Mapping, ShardingRule

SPREADING = frozenset(["broadcast"])
LATER = SPREADING | frozenset(["dot", "convolution", "reduce", "gather", "scatter", "reduce-window",
                               "select-and-scatter"])
MOST_SWEEPS = 64


class Propagation:
    """The sharding of each node, as far as it is known; given: those that an annotation says, and which. origins: of
    each node, by axis, the annotation that it is from."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, given: dict[Node, AxisSharding],
                 givers: dict[Node, Instruction]):
        self.graph, self.mesh = graph, mesh
        self.fixed = set(given)
        self.shardings: dict[Node, AxisSharding] = dict(given)
        self._passed: dict[tuple[int, bool], list[AxisSharding]] = {}      # by edge, and whether forward: see _sweep
        self.origins: dict[Node, dict[int, Instruction]] = {
            node: dict.fromkeys(given[node].used, giver) for node, giver in givers.items()}
        self._spread_manual()

    def begin(self, node: Node, sharding: AxisSharding, giver: Instruction) -> None:
        """What a node has from the start, and may have more than; nothing where something else is known."""
        node = self.graph.find(node)
        if node not in self.shardings:
            self.shardings[node] = sharding
            self.origins[node] = dict.fromkeys(sharding.used, giver)

    def sharding(self, node: Node) -> AxisSharding:
        node = self.graph.find(node)
        return self.shardings.get(node) or replicated(self.graph.shapes[node].rank)

    def run(self) -> None:
        for is_early, is_last in ((True, False), (False, False), (False, True)):
            edges = [e for e in self.graph.edges if not (is_early and e.kind in LATER)]
            for _ in range(MOST_SWEEPS):
                changed = self._sweep(edges, is_last)
                changed |= self._sweep(reversed(edges), is_last)
                if not changed:
                    break

    def _sweep(self, edges: Iterable[Edge], is_last: bool) -> bool:
        """Pass along each edge, but for those that changed nothing last time and whose arrays are divided as then."""
        changed = False
        for edge in edges:
            key = id(edge), is_last or edge.kind not in SPREADING
            now = [self.sharding(n) for n in (*edge.operands, *edge.results) if n is not None]
            if self._passed.get(key) != now:
                if self._pass(edge, forward=key[1]):
                    changed = True
                else:
                    self._passed[key] = now
        return changed

    def _pass(self, edge: Edge, forward: bool) -> bool:
        """One edge, both ways; or, of what spreads an array, backward."""
        sides = [(n, m) for n, m in zip(edge.operands, edge.rule.operands) if n is not None]
        results = list(zip(edge.results, edge.rule.results))
        known = self._merged(edge.rule, [*results, *sides] if forward else results)
        return any([self._refine(edge, known, *side) for side in (*results, *sides)])

    def _merged(self, rule: ShardingRule, sides: list[tuple[Node, Mapping]]) -> FactorAxes:
        """The axes of each factor: those of the array that has most, where the others agree as far as they go."""
        found: dict[int, list[Axes]] = {}
        for node, mapping in sides:
            for factor, axes in factor_axes(self.sharding(node).dimensions, mapping, rule, self.mesh).items():
                found.setdefault(factor, []).append(axes)
        merged = {}
        for factor, several in found.items():
            longest = max(several, key=len)
            if all(longest[:len(axes)] == axes for axes in several):
                merged[factor] = longest
        return merged

    def _refine(self, edge: Edge, known: FactorAxes, node: Node, mapping: Mapping) -> bool:
        node = self.graph.find(node)
        if node in self.fixed:
            return False
        now = self.sharding(node)
        wanted = dimension_axes(known, mapping, edge.rule, self.mesh)
        used, sizes = set(now.used) | now.manual, self.graph.shapes[node].dimensions
        dimensions = list(now.dimensions)
        for d, axes in enumerate(wanted):
            if axes[:len(dimensions[d])] != dimensions[d]:
                continue
            for axis in axes[len(dimensions[d]):]:
                longer = (*dimensions[d], axis)
                if axis in used or not fits(sizes[d], self.mesh.count(longer), len(mapping[d]) == 1):
                    break
                dimensions[d] = longer
                used.add(axis)
                self._trace(edge, node, axis)
        if tuple(dimensions) == now.dimensions:
            return False
        self.shardings[node] = now._replace(dimensions=tuple(dimensions))
        return True

    def _trace(self, edge: Edge, node: Node, axis: int) -> None:
        """Note from which annotation a node has an axis: that of another array of the edge."""
        around = (self.origins.get(self.graph.find(n), {}) for n in (*edge.results, *edge.operands) if n is not None)
        origin = next((origins[axis] for origins in around if axis in origins), None)
        if origin is not None:
            self.origins.setdefault(node, {}).setdefault(axis, origin)

    def _spread_manual(self) -> None:
        """What is computed from what each device has of its own is its own, too."""
        changed = True
        while changed:
            changed = False
            for edge in self.graph.edges:
                manual = frozenset().union(*(self.sharding(n).manual for n in edge.operands if n is not None))
                for node in map(self.graph.find, edge.results if manual else ()):
                    now = self.sharding(node)
                    if node not in self.fixed and not manual <= now.manual:
                        kept = tuple(tuple(a for a in axes if a not in manual) for axes in now.dimensions)
                        self.shardings[node] = AxisSharding(kept, now.manual | manual)
                        changed = True
