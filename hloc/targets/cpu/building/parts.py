"""The parts in which library kernels of runtime/ compile in parallel (runtime/parts.h), and which a program needs.

In: names of units, as in library_kernels.py, and for each the needed parts besides the mandatory ones: from the Tiles
of a program (needed_parts.py). Out: the compilations.

    compiled(["gemm_f32.c"], {"gemm_f32.c": {"THIN"}})  ->  [("gemm_f32.c", ("-DHLOC_PART=HLOC_MAIN", ...)), ...]
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import file_of, generic_flags

# These kernels have separate loops where conditions matter; unswitching all others would double the time of gcc.
SWITCHED = ("-fno-unswitch-loops",)
# Passes that take a fifth of gcc's time, and change nothing in loops with little work per element.
NO_JUMPS = ("-fno-thread-jumps", "-fno-tree-dominator-opts", "-fno-tree-vrp")
# For parts that plan more than they compute, and name their vectors; short ranges are copied a quarter slower.
LEAN = (*NO_JUMPS, "-fno-tree-pre", "-fno-gcse")
PLAIN = ("-fno-peel-loops", *SWITCHED, *LEAN)
QUICK = ("-O1", "-ftree-vectorize")
# For loops whose vectors are named, each in a variable of its own: the same code in three quarters of the time.
STRAIGHT = ("-O1", "-fexpensive-optimizations", *LEAN)
# For code that runs once per step of a program: 0.8 of the compile time. A call of the pool takes 0.7 ns more.
ONCE = (*QUICK, *PLAIN)
# The same for parts that compute more, all with named vectors: 0.85 of PLAIN's time.
BARE = (*PLAIN, *(f"-fno-{name}" for name in (
    "code-hoisting", "crossjumping", "cse-follow-jumps", "ipa-cp", "ipa-icf", "ipa-ra", "ipa-sra", "ipa-vrp",
    "partial-inlining", "rerun-cse-after-loop", "schedule-insns2", "tree-tail-merge", "caller-saves",
    "tree-slp-vectorize")))
THIN = ("DOTS", "ROWS")
# By prefix of a file's name: the flags of each part, the longest prefix first.
IN_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "gemm_": {"MAIN": ONCE, **{f"THIN_{way}_{rows}": () for rows in (4, 3, 2, 1) for way in THIN},
              **{f"KERNELS{read}": STRAIGHT for read in ("_AB", "_B", "_A", "", "_HALF_A", "_HALF")},
              "BLOCKS": PLAIN, "PACKING": BARE, "THIN": LEAN, "PACKING_ROWS": STRAIGHT, "PACKING_A": PLAIN,
              "TRANSPOSING": PLAIN, "STORING": PLAIN, "JOINING": ONCE},
    "fft_": {"FFT_ONE_ODD": PLAIN, "FFT_MOVES": PLAIN, "FFT_MANY_ODD": PLAIN, "FFT_ONE": PLAIN, "FFT_PLANS": ONCE,
             "FFT_LINES": PLAIN, "FFT_MANY": PLAIN},
    "triangular_": {"CHOLESKY": LEAN, "STRIPS": LEAN, "SOLVE": LEAN},
    "conv_dots": {"CONV_DOTS": ()},
    "conv_tiles": {"CONV_TILES": STRAIGHT, "CONV_TILES_OF_PAIRS": STRAIGHT},
    "conv_memory": {"CONV_BF16": PLAIN, "CONV_F16": PLAIN, "CONV_F32": PLAIN, "CONV_MEMORY": PLAIN,
                    "CONV_PAIRS": PLAIN},
    "attention.c": {"ATTEND_BLOCKS": BARE, "ATTEND_PANELS": BARE},
    "attention_pairs.c": {"ATTEND_BLOCKS": BARE, "ATTEND_PANELS": BARE},
    "attention_kernels": dict.fromkeys(("ALONG", "ACROSS", "ALONG_ONE", "ACROSS_ONE"), STRAIGHT),
    "attention_pairs_kernels": dict.fromkeys(("ALONG", "ACROSS", "ALONG_ONE", "ACROSS_ONE"), STRAIGHT),
    "attention_thin": {"FEW_TASKS": (), "FEW_WEIGH": (), "FEW_DOTS": ()},
}
ALWAYS = {"gemm_": {"MAIN", "STORING"}, "triangular_": set(),
          "fft_": {"FFT_LINES", "FFT_PLANS", "FFT_MOVES", "FFT_MANY"},
          "conv_dots": set(), "conv_memory": {"CONV_MEMORY"}, "conv_tiles": {"CONV_TILES"},
          **dict.fromkeys(("attention_kernels", "attention_pairs_kernels"), {"ALONG", "ACROSS"}),
          **dict.fromkeys(("attention.c", "attention_pairs.c"), {"ATTEND_BLOCKS", "ATTEND_PANELS"}),
          "attention_thin": {"FEW_TASKS", "FEW_WEIGH", "FEW_DOTS"}}
WHOLE = {**dict.fromkeys(("complex_c64.c", "complex_c128.c"), ONCE),           # flags of others
         **dict.fromkeys(("conv_outer.c", "conv_transposed.c", "conv_depthwise.c", "conv_winograd.c"), PLAIN),
         "conv.c": ONCE, "conv_pairs.c": PLAIN, "conv_rows.c": LEAN}
SHORT = {"pool.c": ONCE, "call.c": ()}               # saves 0.2 us per call
Parts = dict[str, frozenset[str]]


def compiled(units: Sequence[str], needed: Mapping[str, Collection[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """The compilations of library kernels: (file of runtime/, flags); the longest first."""
    whole = [(file_of(unit), (*(generic_flags(unit) if ":" in unit else ()), *_own_flags(unit))) for unit in units
             if kind_of_unit(unit) is None and unit not in SHORT]
    parts = [(rank, (unit, (f"-DHLOC_PART=HLOC_{part}", *flags))) for unit in units if (kind := kind_of_unit(unit))
             for rank, (part, flags) in enumerate(IN_PARTS[kind].items())
             if part in ALWAYS[kind] or part in needed.get(unit, ())]
    short = [(unit, flags) for unit, flags in SHORT.items() if unit in units]
    return [*whole, *(piece for _, piece in sorted(parts)), *short]


def _own_flags(unit: str) -> tuple[str, ...]:
    """Of a unit that compiles whole; convolutions of types without a library kernel copy what a product multiplies:
    that takes 0.9 of the time at -O1, and gcc three quarters."""
    return (*QUICK, *SWITCHED, *NO_JUMPS) if unit.startswith("generic.c:conv") else WHOLE.get(unit, ())


def kind_of_unit(unit: str) -> str | None:
    """The row of IN_PARTS of a unit; None if it compiles whole."""
    return next((start for start in IN_PARTS if unit.startswith(start)), None)


def add(found: Parts, unit: str, parts: Collection[str]) -> None:
    """Adds the parts of a unit that one step of a program needs."""
    found[unit] = found.get(unit, frozenset()) | frozenset(parts)


def of_attention(queries: int, machine: Machine) -> set[str]:
    """Those of attention_kernels.c, or of attention_pairs_kernels.c, for so many queries: a last panel of them may be
    one vector (attend_panel_of)."""
    lanes = machine.vector_bytes // 4
    return {"ALONG_ONE", "ACROSS_ONE"} if 0 < queries % (2 * lanes) <= lanes else set()
