"""Fourier transforms: Tiles -> C that calls runtime/fft.h with a plan.

In: a Tile as in hloc/kernels/library_kernels/whole_arrays.py. Out: its function.

    fft(tile, "k0_fft", machine)     "... static const int factors0[] = {4, 3, 5}; ... hloc_fft_f32(&plan, ...) ..."
"""
from __future__ import annotations

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.plans.fft import LARGEST_FACTOR, PLAN_BYTES, Lines, Points, plan_of_fft
from hloc.targets.cpu.tiles.library_calls import fields_text, fits, library_function


def fft(tile: Tile, name: str, machine: Machine) -> tuple[CFunction]:
    kernel = "fft_f64" if tile.buffers[1].type in ("c128", "f64") else "fft_f32"
    plan, constants = plan_of_fft(tile, machine), _Constants()
    lines = constants.lines(plan.dimensions)
    fields = {"dimensions": len(plan.dimensions), "through_scratch": plan.through_scratch, "first": plan.first,
              "middle": plan.middle, "lines": lines}
    facts = [*constants.text, f"  static const hloc_fft_plan plan = {{{fields_text(**fields)}}};",
             fits(kernel, machine.vector_bytes, PLAN_BYTES, LARGEST_FACTOR)]
    return library_function(tile, name, "fft.h", facts, (kernel, "&plan", "buffers[0]", "buffers[1]"))


class _Constants:
    """Definitions of constants, each once and before its first use. Methods return the address of one."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._names: dict[object, str] = {}

    def lines(self, all_lines: tuple[Lines, ...]) -> str:
        """Those of several dimensions, or the columns and rows of split lines."""
        def fields(of: Lines) -> str:
            given = {**of._asdict(), "points": self.points(of.points), "kind": f"HLOC_{of.kind}"}
            return fields_text(**{**given, "split": self.lines(of.split)})
        return self._defined("lines", "hloc_fft_lines", all_lines, [f"{{{fields(of)}}}" for of in all_lines])

    def points(self, of: Points | None) -> str:
        if of is None:
            return "0"
        factors = self._defined("factors", "int", of.factors, [str(r) for r in of.factors])
        given = {**of._asdict(), "factor_count": len(of.factors), "factors": factors}
        return self._defined("points", "hloc_fft_points", of, ["{" + fields_text(
            **{**given, **{part: self.points(getattr(of, part)) for part in ("wide", "column", "row")}}) + "}"])

    def _defined(self, kind: str, type: str, key: object, values: list[str]) -> str:
        if not values:
            return "0"
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._names)}"
            self.text.append(f"  static const {type} {self._names[key]}[] = {{{', '.join(values)}}};")
        return self._names[key]
