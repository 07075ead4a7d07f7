"""Scores of attention: C functions that change a tile of sums in place, each written once.

In: an attention Tile, whose epilogue computes the score from a sum in loop IR (hloc/kernels/attention/attention.py).
Out: an Epilogue: a loop over a tile as in epilogues.py (see runtime/attention.h). If the score is one of two values by
a mask that does not depend on the sum, there is a second function: whether any element of a tile is unmasked.

    select(in3[column], acc * 0.125, -1e30)   ->   hloc_score_1f2e(...), masked = -1e30, hloc_score_1f2e_live(...)
"""
from __future__ import annotations

import hashlib

from hloc.kernels.attention.score_masks import Mask, mask_of
from hloc.kernels.ir import Apply, Assign, Const, Let, Load, Mutable, Stmt, Store, Tile, Var
from hloc.targets.c_function import c_function
from hloc.targets.cpu.plans.attention import goes_by_columns
from hloc.targets.cpu.tiles.epilogues import AREA, PLACE, Epilogue, line_of_tile, lines_of_tile
from hloc.targets.printer import C, StatementPrinter, buffer_declarations

OPERANDS = 3                     # buffers before those that the score reads
LARGEST_INT = (1 << 31) - 1
PARAMETERS = f"{AREA},\n    float *sums, long tile_stride"


def score_of(tile: Tile) -> Epilogue | None:
    """The score of an attention; None if it is the sum itself."""
    if tile.epilogue == (Let("score", Var("acc", "f32")),):
        return None
    sizes, mask = dict[int, str](), mask_of(tile.epilogue)
    across, along = ("row", "column") if goes_by_columns(tile) else ("column", "row")
    statements = Let("acc", Load("sums", PLACE, "f32")), *tile.epilogue, Store("sums", PLACE, Var("score", "f32"))
    line = line_of_tile(statements, tile, sizes, along)
    live = _live_line(mask, tile, sizes) if mask else ()
    head = buffer_declarations(tile.buffers)[OPERANDS:-1]
    printer = StatementPrinter(C, index="int" if max(dict(tile.parameters)["sizes"]) <= LARGEST_INT else "long")
    lines = [f"(void *const *given, {PARAMETERS})", *lines_of_tile(line, head, sizes, across, printer), "}"]
    if mask:
        any_live = lines_of_tile(live, head, sizes, "row", printer, ["    if (any) return 1;"])
        lines += [f"int NAME_live(void *const *given, {AREA})", *any_live, "  return 0;", "}"]
    name = f"hloc_score_{hashlib.sha256(''.join(lines).encode()).hexdigest()[:10]}"
    printer.loops += 1 + bool(mask)
    text = "\n".join(["void NAME" + lines[0], *lines[1:], ""]).replace("NAME", name)
    declared = f"void {name}(void *const *given, {PARAMETERS});\n"
    declared += f"int {name}_live(void *const *given, {AREA});\n" if mask else ""
    return Epilogue(c_function(name, [text], printer), tuple(sizes), declared, mask.value if mask else None)


def _live_line(mask: Mask, tile: Tile, sizes: dict[int, str]) -> tuple[Stmt, ...]:
    """Whether the mask is true anywhere in a row, in `any`."""
    found = Var("any", "s32")
    here = Apply("or", (found, Apply("convert", (mask.condition,), "s32")), "s32")
    return (Mutable("any", Const(0, "s32"), "or"),
            *line_of_tile((*mask.needed, Assign("any", here)), tile, sizes, "column"))
