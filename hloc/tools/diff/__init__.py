"""The differences of two modules, instruction by instruction, matched by structure.

    found = diff(before, after)
    found.equal                 ignores names, and the order of instructions that are not scheduled
    found.counts                {"came": 3, "went": 1, "shape": 2 ...}
    found.changes[0]            a Change: the instruction before and after, and the differences

`flat.py` looks through fusions and calls, `keys.py` numbers instructions by content, `matching.py` pairs instructions,
`changes.py` compares the pairs. All of it takes time in proportion to instructions and operands.
"""
from hloc.tools.diff.changes import Change, Detail, Difference, diff

__all__ = ["Change", "Detail", "Difference", "diff"]
