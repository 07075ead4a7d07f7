"""Results on made-up inputs: by the NumPy evaluator, or by compiled C."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hloc import api
from hloc.explore.content import NO_LINES, Content, Row, table, tables
from hloc.explore.work import Work, own_line
from hloc.inputs import Named, entry_parameters
from hloc.inputs.elided import fill_elided
from hloc.inputs.sensible import sensible_arrays
from hloc.ir import Instruction, leaves
from hloc.ir.clone import clone_module
from hloc.tools.formatting import array_cells

MADE_UP = "sensible:0"
COLUMNS = ("name", "type", "shape", "min", "mean", "max", "first values")


def results(work: Work, chosen: Mapping[str, str]) -> Content:
    """Raises the module's first fault where it breaks rules of HLO."""
    if work.module.faults:
        raise work.module.faults[0]
    module = clone_module(work.module)
    filled = fill_elided(module, MADE_UP)
    given = sensible_arrays(module, 0)
    exe = api.compile(module, "reference" if chosen["by"] == "evaluator" else "cpu")
    found = exe(*given)
    parameters = [p for p in module.entry.parameters for _ in leaves(p.shape)]
    root = module.entry.root
    elements = [root] if root is None or root.opcode != "tuple" else root.operands
    roots = [e for e in elements if e is not None for _ in leaves(e.shape)]
    note = "Parameters are random numbers that fit what they are used for, as --inputs sensible:0 has them"
    if filled:
        note += f"; so are {filled} constants whose values the text omits"
    return tables([_arrays("Results", exe.results, found, roots),
                   _arrays("Parameters", entry_parameters(module), given, parameters)], note)


def _arrays(title: str, values: Sequence[Named], arrays: Sequence[np.ndarray],
            owners: Sequence[Instruction]) -> Content:
    owners = owners if len(owners) == len(values) else []
    rows = [Row((v.name, v.shape.element_type, *array_cells(a)), own_line(owners[n]) if owners else NO_LINES)
            for n, (v, a) in enumerate(zip(values, arrays))]
    return table(title, COLUMNS, rows, right=(3, 4, 5))
