"""Moves a select between an array and updates of it into the updates. They then work in place, and the rest of the
array is neither read nor written.

    s = f32[9,4] dynamic-update-slice(x, u, i, j)            m = pred[1,4] broadcast(p)
    r = f32[9,4] select(broadcast(p), s, x)             =>   old = f32[1,4] dynamic-slice(x, i, j)
                                                             v = f32[1,4] select(m, u, old)
                                                             r = f32[9,4] dynamic-update-slice(x, v, i, j)

    s = f32[9,4] scatter(x, i, u)                            k = s32[1] select(broadcast(p), i, broadcast(-1))
    r = f32[9,4] select(broadcast(p), s, x)             =>   r = f32[9,4] scatter(x, k, u), which skips indices outside
                                                             of x

Both arms may be chains of updates and reshapes that start from one array. Those of the first arm are applied where the
predicate is true, then those of the second where it is false. If an update of a chain reads an earlier array of the
chain, it reads the array of the new chain at that step instead: both are equal where the value is used.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.control_flow import is_control_flow
from hloc.analysis.effects import NOT_MERGEABLE, has_side_effect
from hloc.ir import Instruction, Shape, SliceDim
from hloc.ir.narrowing import all_known
from hloc.passes.patterns import highest, reshape, spread
from hloc.passes.rewriter import Rewriter
from hloc.passes.scatter_simplifier import combines, overwrites, window_sizes

MOST_LINKS = 64             # of a chain of updates
MOST_FOLLOWED = 256         # instructions examined for uses of earlier updates of a chain


class Mask(NamedTuple):
    """Where updates are applied. whole: the predicate of the select; scalar: its value if it is the same everywhere, or
    None; wanted: the predicate's value for which the update is applied."""

    whole: Instruction
    scalar: Instruction | None
    wanted: bool

    def choose(self, rewriter: Rewriter, predicate: Instruction, new: Instruction, old: Instruction) -> Instruction:
        """new where `predicate` has the wanted value, else old."""
        arms = [new, old] if self.wanted else [old, new]
        return rewriter.add("select", new.shape, [spread(rewriter, predicate, new.shape), *arms])


def select_of_updates(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(p, update(x), x) => update(x) masked by p; also for chains of updates, and for both arms"""
    predicate, a, b = instruction.operands
    if not (is_link(a) or is_link(b)):
        return None
    found = links_from_common(a, b)
    if found is None or not pays(*found):
        return None
    base, first, second = found
    scalar = the_one_value(predicate, rewriter)
    value = base
    for links, wanted in ((first, True), (second, False)):
        new = chosen(rewriter, reshape(rewriter, value, base.shape), links, Mask(predicate, scalar, wanted))
        if new is None:
            return None
        value = new
    return reshape(rewriter, value, instruction.shape)


def select_of_scattered(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(p, get-tuple-element(scatter(x, y, ...)), x) => an element of a scatter masked by p"""
    predicate, *arms = instruction.operands
    for arm, other, wanted in ((arms[0], arms[1], True), (arms[1], arms[0], False)):
        if arm.opcode != "get-tuple-element" or arm.operands[0].opcode != "scatter":
            continue
        scatter = arm.operands[0]
        count = len(scatter.operands) // 2
        indices, updates = scatter.operands[count], scatter.operands[count + 1:]
        if other is scatter.operands[arm.get("index")] and updates[0].shape.num_elements <= other.shape.num_elements:
            mask = Mask(predicate, the_one_value(predicate, rewriter), wanted)
            masked = masked_indices(rewriter, scatter, indices, mask)
            if masked is not None:
                new = rewriter.change(scatter, operands=[*scatter.operands[:count], masked, *updates],
                                      indices_are_sorted=order_kept(scatter, mask))
                return rewriter.change(arm, operands=[new])
    return None


def is_link(instruction: Instruction) -> bool:
    """Whether an instruction is an update of one array, or a reshape, which may be between two updates."""
    return instruction.opcode in ("dynamic-update-slice", "reshape") \
        or (instruction.opcode == "scatter" and len(instruction.operands) == 3)


def chain_to(top: Instruction) -> list[Instruction]:
    """`top`, the array that it updates, the array that this one updates, and so on."""
    found = [top]
    while is_link(found[-1]) and len(found) <= MOST_LINKS:
        found.append(found[-1].operands[0])
    return found


def links_from_common(a: Instruction, b: Instruction) -> tuple[Instruction, list, list] | None:
    """The array that both update, and the links from it to `a` and to `b`."""
    first, second = chain_to(a), chain_to(b)
    place = {instruction: n for n, instruction in enumerate(second)}
    for n, instruction in enumerate(first):
        if instruction in place:
            return instruction, first[:n][::-1], second[:place[instruction]][::-1]
    return None


def pays(base: Instruction, first: list[Instruction], second: list[Instruction]) -> bool:
    """True if there are updates, and they write no more elements than the select."""
    sizes = [update_of(link).shape.num_elements for link in first + second if link.opcode != "reshape"]
    return bool(sizes) and sum(sizes) <= base.shape.num_elements


def update_of(link: Instruction) -> Instruction:
    return link.operands[1 if link.opcode == "dynamic-update-slice" else 2]


def the_one_value(predicate: Instruction, rewriter: Rewriter) -> Instruction | None:
    """The scalar that a predicate broadcasts, or None."""
    while predicate.opcode in ("broadcast", "reshape") and predicate.shape.num_elements != 1:
        predicate = predicate.operands[0]
    return reshape(rewriter, predicate, predicate.shape.with_dimensions(())) \
        if predicate.shape.num_elements == 1 else None


def chosen(rewriter: Rewriter, value: Instruction, links: list[Instruction], mask: Mask) -> Instruction | None:
    """The links applied to `value`, each masked. None if one cannot be masked."""
    follower = Follower(rewriter)
    for link in links:
        if link.opcode == "reshape":
            new = reshape(rewriter, value, link.shape) if mask.scalar is not None else None
        else:
            operands = [follower.now(operand) for operand in link.operands[1:]]
            if not all_known(operands):
                return None
            masked = masked_slice if link.opcode == "dynamic-update-slice" else masked_scatter
            new = masked(rewriter, link, [value, *operands], mask)
        if new is None:
            return None
        follower.replaced[link] = value = new
    return value


# -- one update --------------------------------------------------------------------------------------------------------

def masked_slice(rewriter: Rewriter, link: Instruction, operands: list[Instruction], mask: Mask) -> Instruction:
    value, update, *indices = operands
    predicate = mask.scalar or part(rewriter, mask.whole, update.shape, indices)
    new = mask.choose(rewriter, predicate, update, part(rewriter, value, update.shape, indices))
    return rewriter.change(link, operands=[value, new, *indices])


def part(rewriter: Rewriter, array: Instruction, shape: Shape, indices: list[Instruction]) -> Instruction:
    """The elements of `array` at the indices of an update of that shape."""
    return rewriter.add("dynamic-slice", array.shape.with_dimensions(shape.dimensions), [array, *indices],
                        {"dynamic_slice_sizes": shape.dimensions})


def masked_scatter(rewriter: Rewriter, link: Instruction, operands: list[Instruction],
                   mask: Mask) -> Instruction | None:
    value, indices, update = operands
    masked = masked_indices(rewriter, link, indices, mask)
    if masked is None:
        return masked_scatter_to_one_place(rewriter, link, operands, mask)
    return rewriter.change(link, operands=[value, masked, update], indices_are_sorted=order_kept(link, mask))


def masked_indices(rewriter: Rewriter, scatter: Instruction, indices: Instruction, mask: Mask) -> Instruction | None:
    """Indices that are outside of the array where the update is masked out; None if there is no such index or mask."""
    predicate, outside = mask_of_indices(rewriter, scatter, indices, mask), index_outside(scatter, indices)
    if predicate is None or outside is None:
        return None
    nowhere = spread(rewriter, rewriter.constant(outside, indices.shape.element_type), indices.shape)
    return mask.choose(rewriter, predicate, indices, nowhere)


def order_kept(scatter: Instruction, mask: Mask) -> bool | None:
    """indices_are_sorted of a scatter with masked indices."""
    return scatter.get("indices_are_sorted") if mask.scalar is not None else None


def mask_of_indices(rewriter: Rewriter, scatter: Instruction, indices: Instruction, mask: Mask) -> Instruction | None:
    """The predicate for each index: a scalar, or one that depends only on batch dimensions. None for others."""
    if mask.scalar is not None:
        return mask.scalar
    whole = mask.whole
    places = dict(zip(scatter.get("input_batching_dims", ()), scatter.get("scatter_indices_batching_dims", ())))
    if whole.opcode != "broadcast" or any(d not in places for d in whole.get("dimensions")):
        return None
    return rewriter.add("broadcast", indices.shape.with_element_type("pred"), whole.operands,
                        {"dimensions": tuple(places[d] for d in whole.get("dimensions"))})


def index_outside(scatter: Instruction, indices: Instruction) -> int | None:
    """An index that is outside of the array in every scattered dimension; None if the type has none."""
    scattered = scatter.get("scatter_dims_to_operand_dims", ())
    if not scattered or indices.shape.kind == "signed":
        return -1 if scattered else None
    most = highest(indices.shape.element_type)
    sizes = scatter.operands[0].shape.dimensions
    return most if all(sizes[d] <= most for d in scattered) else None


def masked_scatter_to_one_place(rewriter: Rewriter, scatter: Instruction, operands: list[Instruction],
                                mask: Mask) -> Instruction | None:
    """A scatter of one window, as a dynamic-update-slice, whose elements can be masked separately."""
    value, indices, update = operands
    window = window_sizes(scatter)
    shape = update.shape.with_dimensions(window)
    if shape.num_elements != update.shape.num_elements or not (overwrites(scatter) or combines(scatter)):
        return None
    starts, inside = place_of(rewriter, scatter, indices, window)
    old, new = part(rewriter, value, shape, starts), reshape(rewriter, update, shape)
    if not overwrites(scatter):
        new = rewriter.add(scatter.get("to_apply").root.opcode, shape, [old, new])
    predicate = mask.scalar or part(rewriter, mask.whole, shape, starts)
    new = mask.choose(rewriter, predicate, new, old)
    if inside is not None:
        new = Mask(inside, inside, True).choose(rewriter, inside, new, old)
    return rewriter.add("dynamic-update-slice", scatter.shape, [value, new, *starts])


def place_of(rewriter: Rewriter, scatter: Instruction, indices: Instruction,
             window: list[int]) -> tuple[list[Instruction], Instruction | None]:
    """The start of the one window of a scatter in each dimension, and whether the window is inside of the array."""
    type = indices.shape.element_type
    scalar, flat = indices.shape.with_dimensions(()), indices.shape.with_dimensions((indices.shape.num_elements,))
    vector = reshape(rewriter, indices, flat)
    starts = [rewriter.constant(0, type)] * len(window)
    inside: Instruction | None = None
    for n, d in enumerate(scatter.get("scatter_dims_to_operand_dims", ())):
        one = rewriter.add("slice", flat.with_dimensions((1,)), [vector], {"slice": (SliceDim(n, n + 1),)})
        starts[d] = reshape(rewriter, one, scalar)
        fits = lies_within(rewriter, starts[d], scatter.shape.dimensions[d] - window[d])
        inside = fits if inside is None else rewriter.add("and", fits.shape, [inside, fits])
    return starts, inside


def lies_within(rewriter: Rewriter, index: Instruction, limit: int) -> Instruction:
    """Whether a scalar index is from 0 to `limit`."""
    type, result = index.shape.element_type, index.shape.with_element_type("pred")
    low, high = (rewriter.add("compare", result, [index, rewriter.constant(bound, type)], {"direction": direction})
                 for bound, direction in ((0, "GE"), (min(limit, highest(type)), "LE")))
    return rewriter.add("and", result, [low, high])


# -- values that updates compute from earlier ones ---------------------------------------------------------------------

class Follower:
    """Recomputes, from the new links of a chain, values computed from the old ones. `replaced`: old -> new."""

    def __init__(self, rewriter: Rewriter):
        self.rewriter = rewriter
        self.replaced: dict[Instruction, Instruction] = {}
        self.left = MOST_FOLLOWED

    def now(self, value: Instruction) -> Instruction | None:
        """`value` computed from the new links; unchanged if it reads no old ones. None if that takes too many
        instructions, or if one cannot be recomputed."""
        if not self.replaced:
            return value
        found: dict[Instruction, Instruction] = dict(self.replaced)
        stack = [value]
        while stack:
            node = stack[-1]
            waiting = [o for o in node.operands if o not in found] if node not in found else []
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if node not in found:
                self.left -= 1
                if self.left < 0:
                    return None
                operands = [found[o] for o in node.operands]
                same = all(a is b for a, b in zip(operands, node.operands))
                if not same and not may_be_computed_again(node):
                    return None
                found[node] = node if same else self.rewriter.change(node, operands=operands)
        return found[value]


def may_be_computed_again(instruction: Instruction) -> bool:
    return not (is_control_flow(instruction) or has_side_effect(instruction) or instruction.opcode in NOT_MERGEABLE)


RULES = {"select": (select_of_updates, select_of_scattered)}
