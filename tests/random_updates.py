"""Random loops that carry a few arrays and update them: by slices and scatters, behind selects and in branches, beside
reads of what was there before, with arrays exchanged, made anew and forgotten.

    text, count = random_loop(random.Random(7)); arrays = random_inputs(count, seed=0)

Arrays are f32[9,3]; a step is given a row, a place (some outside of the arrays) and a truth.
"""
from __future__ import annotations

from random import Random

import numpy as np

ROWS, COLUMNS, STEPS = 9, 3, 8
ARRAY, ROW = f"f32[{ROWS},{COLUMNS}]", f"f32[1,{COLUMNS}]"
WIDE, WIDE_ROW = ARRAY.replace("f32", "f64"), ROW.replace("f32", "f64")
WINDOW = "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0"
CONSTANTS = ["zero = s32[] constant(0)", "one = s32[] constant(1)", "two = s32[] constant(2)"]
COMBINERS = """second { a = f32[] parameter(0)  ROOT b = f32[] parameter(1) }
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
wide_second { a = f64[] parameter(0)  ROOT b = f64[] parameter(1) }
wide_product { a = f64[] parameter(0)  b = f64[] parameter(1)  ROOT c = f64[] multiply(a, b) }"""
DEEPEST = 2                 # conditionals in conditionals


def random_inputs(count: int, seed: int) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-9, 10, (ROWS, COLUMNS)).astype(np.float32) for _ in range(count)]
    rows = rng.integers(-9, 10, (STEPS, COLUMNS)).astype(np.float32)
    return [*arrays, rows, rng.integers(-2, ROWS + 2, STEPS).astype(np.int32), rng.integers(0, 2, STEPS).astype(bool)]


def random_loop(random: Random) -> tuple[str, int]:
    """A module's text, and how many arrays it carries."""
    made = RandomLoop(random, random.randint(1, 3))
    return made.text(), made.count


class RandomLoop:
    def __init__(self, random: Random, count: int):
        self.random, self.count = random, count
        self.computations = [COMBINERS]
        self.names = 0
        self.state = f"(s32[], {', '.join([ARRAY] * count)}, f32[{STEPS},{COLUMNS}], s32[{STEPS}], pred[{STEPS}])"
        self.given = f"(s32[], {ROW}, pred[], {', '.join([ARRAY] * count)})"
        self.results = f"({', '.join([ARRAY] * count)})"

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def text(self) -> str:
        self.body()
        self.add("less", [f"t = {self.state} parameter(0)", "n = s32[] get-tuple-element(t), index=0",
                          f"m = s32[] constant({STEPS})", "ROOT c = pred[] compare(n, m), direction=LT"])
        arrays = [f"b{n} = {ARRAY} parameter({n})" for n in range(self.count)]
        rows = [f"us = f32[{STEPS},{COLUMNS}] parameter({self.count})", f"is = s32[{STEPS}] parameter({self.count + 1})",
                f"ps = pred[{STEPS}] parameter({self.count + 2})"]
        same = self.random.random() < 0.15                  # one array in several places
        carried = ", ".join("b0" if same else f"b{n}" for n in range(self.count))
        self.add("ENTRY e", [*arrays, *rows, "z = s32[] constant(0)", f"t = {self.state} tuple(z, {carried}, us, is, ps)",
                             f"ROOT w = {self.state} while(t), condition=less, body=body"])
        return "HloModule random_loop\n" + "\n".join(self.computations) + "\n"

    def add(self, name: str, lines: list[str]) -> None:
        self.computations.append(f"{name} {{\n" + "\n".join(lines) + "\n}")

    def elements(self, first: int) -> list[str]:
        return [f"b{n} = {ARRAY} get-tuple-element(t), index={first + n}" for n in range(self.count)]

    def body(self) -> None:
        last = self.count + 1
        lines = [f"t = {self.state} parameter(0)", *CONSTANTS, "n = s32[] get-tuple-element(t), index=0", *self.elements(1),
                 f"us = f32[{STEPS},{COLUMNS}] get-tuple-element(t), index={last}",
                 f"is = s32[{STEPS}] get-tuple-element(t), index={last + 1}",
                 f"ps = pred[{STEPS}] get-tuple-element(t), index={last + 2}", "next = s32[] add(n, one)",
                 f"u = {ROW} dynamic-slice(us, n, zero), dynamic_slice_sizes={{1,{COLUMNS}}}",
                 "i1 = s32[1] dynamic-slice(is, n), dynamic_slice_sizes={1}", "i = s32[] reshape(i1)",
                 "p1 = pred[1] dynamic-slice(ps, n), dynamic_slice_sizes={1}", "p = pred[] reshape(p1)"]
        arrays = [f"b{n}" for n in range(self.count)]
        for _ in range(self.random.randint(1, 3)):
            arrays = self.steps(lines, arrays, 0)
        self.add("body", [*lines, f"ROOT r = {self.state} tuple(next, {', '.join(arrays)}, us, is, ps)"])

    def branch(self, depth: int) -> str:
        name, arrays = self.fresh("branch"), [f"b{n}" for n in range(self.count)]
        lines = [f"t = {self.given} parameter(0)", *CONSTANTS, "i = s32[] get-tuple-element(t), index=0",
                 f"u = {ROW} get-tuple-element(t), index=1", "p = pred[] get-tuple-element(t), index=2", *self.elements(3)]
        if self.random.random() < 0.85:
            arrays = self.steps(lines, arrays, depth)
        self.add(name, [*lines, f"ROOT r = {self.results} tuple({', '.join(arrays)})"])
        return name

    def steps(self, lines: list[str], arrays: list[str], depth: int) -> list[str]:
        """The arrays after up to three changes."""
        arrays = list(arrays)
        for _ in range(self.random.randint(0, 3)):
            kind = self.random.choice([self.slice, self.scatter, self.fresh_array, self.shift, self.reads_beside,
                                       self.rows_exchanged, self.flat, self.converted, self.selected, self.selected, None, "branch", "branch"])
            n = self.random.randrange(self.count)
            if kind is None:
                m = self.random.randrange(self.count)
                arrays[n], arrays[m] = arrays[m], arrays[n]
            elif kind == "branch":
                arrays = self.conditional(lines, arrays, depth) if depth < DEEPEST else arrays
            else:
                old = arrays[n]
                arrays[n] = kind(lines, arrays, old)
                if self.random.random() < 0.12:
                    arrays[self.random.randrange(self.count)] = old
        return arrays

    def conditional(self, lines: list[str], arrays: list[str], depth: int) -> list[str]:
        name, branches = self.fresh("c"), []
        for _ in range(self.random.choice([2, 2, 3])):
            again = branches and self.random.random() < 0.2
            branches.append(self.random.choice(branches) if again else self.branch(depth + 1))
        lines.append(f"{name}g = {self.given} tuple(i, u, p, {', '.join(arrays)})")
        given = ", ".join([f"{name}g"] * len(branches))
        lines.append(f"{name} = {self.results} conditional({'p' if len(branches) == 2 else 'i'}, {given}), " + (
            f"true_computation={branches[0]}, false_computation={branches[1]}" if len(branches) == 2
            else f"branch_computations={{{', '.join(branches)}}}"))
        lines += [f"{name}r{n} = {ARRAY} get-tuple-element({name}), index={n}" for n in range(self.count)]
        return [f"{name}r{n}" if self.random.random() < 0.9 else old for n, old in enumerate(arrays)]

    # -- one change of one array: adds lines, gives back the name of the new array ------------------------------------

    def slice(self, lines: list[str], arrays: list[str], old: str) -> str:
        name = self.fresh("v")
        lines.append(f"{name} = {ARRAY} dynamic-update-slice({old}, u, i, zero)")
        return name

    def scatter(self, lines: list[str], arrays: list[str], old: str) -> str:
        name, combiner = self.fresh("v"), self.random.choice(["second", "sum"])
        lines += [f"{name}i = s32[1] reshape(i)", f"{name}u = f32[{COLUMNS}] reshape(u)",
                  f"{name} = {ARRAY} scatter({old}, {name}i, {name}u), {WINDOW}, to_apply={combiner}"]
        return name

    def fresh_array(self, lines: list[str], arrays: list[str], old: str) -> str:
        name = self.fresh("v")
        lines.append(f"{name} = {ARRAY} {self.random.choice(['negate', 'abs', 'floor'])}({self.random.choice(arrays)})")
        return name

    def shift(self, lines: list[str], arrays: list[str], old: str) -> str:
        name, source = self.fresh("v"), self.random.choice(arrays)
        lines += [f"{name}s = f32[3,{COLUMNS}] dynamic-slice({source}, i, zero), dynamic_slice_sizes={{3,{COLUMNS}}}",
                  f"{name} = {ARRAY} dynamic-update-slice({old}, {name}s, {self.random.choice(['i', 'one', 'two'])}, zero)"]
        return name

    def reads_beside(self, lines: list[str], arrays: list[str], old: str) -> str:
        """A sum of what was there and what is there now."""
        name = self.fresh("v")
        lines += [f"{name}a = {self.row_of(old, 'one')}", f"{name}d = {ARRAY} dynamic-update-slice({old}, u, i, zero)",
                  f"{name}b = {self.row_of(name + 'd', 'two')}", f"{name}c = {ROW} add({name}a, {name}b)",
                  f"{name} = {ARRAY} dynamic-update-slice({name}d, {name}c, two, zero)"]
        return name

    def rows_exchanged(self, lines: list[str], arrays: list[str], old: str) -> str:
        name = self.fresh("v")
        lines += [f"{name}a = {self.row_of(old, 'i')}", f"{name}b = {self.row_of(old, 'two')}",
                  f"{name}c = {ARRAY} dynamic-update-slice({old}, {name}a, two, zero)",
                  f"{name} = {ARRAY} dynamic-update-slice({name}c, {name}b, i, zero)"]
        return name

    def flat(self, lines: list[str], arrays: list[str], old: str) -> str:
        name, size = self.fresh("v"), ROWS * COLUMNS
        lines += [f"{name}f = f32[{size}] reshape({old})", f"{name}u = f32[{COLUMNS}] reshape(u)",
                  f"{name}d = f32[{size}] dynamic-update-slice({name}f, {name}u, i)", f"{name} = {ARRAY} reshape({name}d)"]
        return name

    def converted(self, lines: list[str], arrays: list[str], old: str) -> str:
        """Changed as f64, by what f32 does not hold, now and then behind a select, and rounded."""
        name = self.fresh("v")
        lines += [f"{name}w = {WIDE} convert({old})", f"{name}c = f64[] constant(0.1)",
                  f"{name}t = {WIDE_ROW} broadcast({name}c), dimensions={{}}", f"{name}n = {WIDE_ROW} convert(u)",
                  f"{name}u = {WIDE_ROW} multiply({name}n, {name}t)", f"{name}i = s32[1] reshape(i)",
                  f"{name}r = f64[{COLUMNS}] reshape({name}u)"]
        new = f"{name}w"
        for n in range(self.random.randint(1, 3)):
            new = self.converted_once(lines, name, new, f"{name}x{n}")
        if self.random.random() < 0.4:
            lines += [f"{name}p = pred[{ROWS},{COLUMNS}] broadcast(p), dimensions={{}}",
                      f"{name}s = {WIDE} select({name}p, {new}, {name}w)"]
            new = f"{name}s"
        lines.append(f"{name} = {ARRAY} convert({new})")
        return name

    def converted_once(self, lines: list[str], name: str, old: str, new: str) -> str:
        kind = self.random.choice(["slice", "slice", "sum", "wide_second", "wide_second", "wide_product"])
        if kind == "slice":
            lines.append(f"{new} = {WIDE} dynamic-update-slice({old}, {name}u, {self.random.choice(['i', 'one'])}, zero)")
        elif kind == "sum":
            lines += [f"{new}o = {WIDE_ROW} dynamic-slice({old}, i, zero), dynamic_slice_sizes={{1,{COLUMNS}}}",
                      f"{new}s = {WIDE_ROW} add({new}o, {name}u)",
                      f"{new} = {WIDE} dynamic-update-slice({old}, {new}s, i, zero)"]
        else:
            lines.append(f"{new} = {WIDE} scatter({old}, {name}i, {name}r), {WINDOW}, to_apply={kind}")
        return new

    def selected(self, lines: list[str], arrays: list[str], old: str) -> str:
        """Between the array, one or two changes of it, and others."""
        changes = [self.slice, self.scatter, self.shift, self.reads_beside, self.rows_exchanged, self.flat, self.converted]
        new = old
        for _ in range(self.random.randint(1, 2)):
            new = self.random.choice(changes)(lines, arrays, new)
        other = self.random.choice([old, old, self.random.choice(changes)(lines, arrays, old), *arrays])
        name, arms = self.fresh("v"), [new, other]
        self.random.shuffle(arms)
        lines += [f"{name}p = pred[{ROWS},{COLUMNS}] broadcast(p), dimensions={{}}",
                  f"{name} = {ARRAY} select({name}p, {arms[0]}, {arms[1]})"]
        return name

    @staticmethod
    def row_of(array: str, place: str) -> str:
        return f"{ROW} dynamic-slice({array}, {place}, zero), dynamic_slice_sizes={{1,{COLUMNS}}}"
