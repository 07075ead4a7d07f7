"""The collectives of a program as C: the constants that runtime/communicator.h describes, and the steps of the driver.

In: Collective steps of a plan. Out: C text.

    table = Collectives(names); table.place(step)      "collectives + 0"
    table.text()                                       static const hloc_collective collectives[] = {...};
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.plan import Block, Collective
from hloc.targets.c_headers import c_string

# The functions of a communicator; HLOC_ALL_REDUCE ... are their kinds.
FUNCTIONS = {"all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter", "all-gather": "all_gather",
             "all-to-all": "all_to_all", "collective-broadcast": "broadcast", "collective-permute": "permute",
             "send": "send", "recv": "recv", "ragged-all-to-all": "ragged_all_to_all"}
LONGEST_NAME, NUMBERS_PER_LINE = 120, 24


@dataclass
class Collectives:
    """names: of the functions of the program's kernels."""

    names: Sequence[str]
    blocks: dict[tuple[Block, ...], str] = field(default_factory=dict)
    groups: dict[tuple, str] = field(default_factory=dict)
    pairs: dict[tuple, str] = field(default_factory=dict)
    rows: dict[tuple[int, str], str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many numbers they have."""
        return 1 + max((number for number, _ in self.rows), default=-1)

    def place(self, step: Collective) -> str:
        """The C expression of a collective's description."""
        key = step.number, step.kind
        if key not in self.rows:
            blocks = self.blocks.setdefault(step.blocks, f"blocks{len(self.blocks)}")
            groups = self.groups.setdefault(step.groups, f"groups{len(self.groups)}")
            pairs = self.pairs.setdefault(step.pairs, f"pairs{len(self.pairs)}")
            assert step.instruction is not None             # of a plan that was not saved
            shown = c_string(f"{step.kind} %{step.instruction.name}"[:LONGEST_NAME])
            kind = f"HLOC_{FUNCTIONS[step.kind].upper()}"
            self.rows[key] = f"{{{kind}, {step.number}, {len(step.blocks)}, {shown}, {blocks}, {groups}, {pairs}}}"
        return f"collectives + {list(self.rows).index(key)}"

    def text(self) -> list[str]:
        """The constants."""
        if not self.rows:
            return []
        lines = [f"static const hloc_block {name}[] = {{{', '.join(map(self._block, blocks))}}};"
                 for blocks, name in self.blocks.items()]
        for groups, name in self.groups.items():
            lines.append(_numbers(name, [len(groups), *(n for g in groups for n in (len(g), *g))]))
        for pairs, name in self.pairs.items():
            lines.append(_numbers(name, [len(pairs), *(n for pair in pairs for n in pair)]))
        return lines + constant_table("hloc_collective collectives", self.rows.values())

    def _block(self, block: Block) -> str:
        combine = "0" if block.combine is None else self.names[block.combine]
        return (f'{{"{block.type}", "{block.op}", {ELEMENT_TYPES[block.type].bytes}, {block.rows}, {block.run}, '
                f"{block.stride}, {combine}}}")


def constant_table(name: str, rows: Iterable[str]) -> list[str]:
    """The C text of an array, if it has rows; name: with the type of its elements."""
    lines = [f"  {row}," for row in rows]
    return [f"static const {name}[] = {{", *lines, "};", ""] if lines else []


def _numbers(name: str, numbers: Sequence[int]) -> str:
    rows = [", ".join(map(str, numbers[i:i + NUMBERS_PER_LINE])) for i in range(0, len(numbers), NUMBERS_PER_LINE)]
    joined = ",\n  ".join(rows)
    return f"static const int32_t {name}[] = {{{joined}}};"
