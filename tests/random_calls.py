"""Control flow in random modules: while, conditional, call, fusion, map. Each writes computations of its own first."""
from __future__ import annotations

from random_body import Body, Value
from random_ops import BASIC, repeated

DEEPEST = 2


def inner(body: Body, makers=None) -> Body:
    """A computation that the next instruction of `body` will call."""
    return Body(body.program, makers or body.makers, body.depth + 1)


def close(sub: Body, wanted, stem: str) -> str:
    """Write a root of the `wanted` shapes (a tuple, unless there is one) and add the computation to the program."""
    return finish(sub, [youngest(sub, *one) for one in wanted], stem)


def finish(sub: Body, parts: list[Value], stem: str) -> str:
    """Return `parts`, and add the computation to the program; its name."""
    root = parts[0].name if len(parts) == 1 else \
        sub.line(f"({', '.join(plain(sub, p) for p in parts)})", "tuple", parts)
    name = sub.program.name(stem)
    sub.program.computations.append(sub.finish(name, root))
    return name


def row_major(sub: Body, value: Value) -> Value:
    """The value, or a copy of it in the row-major layout."""
    if sub.shape_of(value) == plain(sub, value):
        return value
    return Value(sub.line(plain(sub, value), "copy", [value]), value.type, value.dims)


def plain(sub: Body, value: Value) -> str:
    return sub.program.shape(value.type, value.dims, plain=True)


def youngest(sub: Body, element_type: str, dims) -> Value:
    """The last value of this shape in the row-major layout, if chance will; else any."""
    text = f"{element_type}[{','.join(map(str, dims))}]"
    for value in reversed(sub.values):
        if (value.type, value.dims) == (element_type, tuple(dims)) and sub.shape_of(value) == text \
                and not sub.choices.chance(20):
            return value
    found = sub.like(element_type, dims)
    if sub.shape_of(found) == text:
        return found
    name = sub.line(text, "copy", [found])
    return Value(name, element_type, tuple(dims))


def plain_arguments(body: Body, count: int) -> list[Value]:
    """Values to pass; copied to the row-major layout in modules that have layouts."""
    found = []
    for _ in range(count):
        value = body.some()
        found.append(youngest(body, value.type, value.dims) if body.program.layouts else value)
    return found


def fill(sub: Body, arguments) -> None:
    """Parameters for the arguments, in the row-major layout."""
    for number, value in enumerate(arguments):
        name = sub.line(plain(sub, value), "parameter", [str(number)])
        sub.values.append(Value(name, value.type, value.dims))


def called(body: Body, opcode: str, attributes, makers=None, whole: bool = False) -> None:
    """call and fusion; `whole`: the result holds everything that is not read inside."""
    arguments = plain_arguments(body, body.choices.integer(1, 3))
    sub = inner(body, makers)
    fill(sub, arguments)
    sub.grow(body.choices.integer(1, 5))
    if whole:
        wanted = [(v.type, v.dims) for v in sub.unread()]
        name = finish(sub, [row_major(sub, v) for v in sub.unread()], "fused")
    else:
        wanted = [(v.type, v.dims) for v in sub.choices.subset(sub.values[-4:], sub.choices.pick((1, 1, 2)))]
        name = close(sub, wanted, "called")
    texts = [a.replace("$", name) for a in attributes]
    if len(wanted) == 1:
        value_name = body.line(body.program.shape(*wanted[0], plain=True), opcode, arguments, *texts)
        body.values.append(Value(value_name, *wanted[0]))
    else:
        body.emit_tuple(wanted, opcode, arguments, *texts)


def call(body: Body) -> None:
    if body.depth < DEEPEST:
        called(body, "call", ["to_apply=$"])


def fusion(body: Body) -> None:
    if body.depth < DEEPEST:
        called(body, "fusion", ["kind=kLoop", "calls=$"], repeated(BASIC), whole=True)


def while_(body: Body) -> None:
    """A loop over a counter and one to three arrays, of at most five rounds."""
    if body.depth >= DEEPEST:
        return
    state = plain_arguments(body, body.choices.integer(1, 3))
    start, step, trips = body.choices.pick((0, 0, 1, 3)), body.choices.pick((1, 1, 2)), body.choices.pick((3, 1, 0, 5))
    shapes = [("s32", ()), *[(v.type, v.dims) for v in state]]
    text = f"({', '.join(body.program.shape(t, d, plain=True) for t, d in shapes)})"
    condition = loop_condition(body, text, start + step * trips)
    stepper = loop_body(body, text, shapes, step)
    counter = body.emit("s32", (), "constant", [str(start)])
    group = body.line(text, "tuple", [counter, *state])
    body.emit_tuple(shapes, "while", [group], f"condition={condition}", f"body={stepper}")


def loop_condition(body: Body, text: str, limit: int) -> str:
    name = body.program.name("condition")
    body.program.computations.append(
        f"{name} {{\n  state = {text} parameter(0)\n  counter = s32[] get-tuple-element(state), index=0\n"
        f"  limit = s32[] constant({limit})\n  ROOT more = pred[] compare(counter, limit), direction=LT\n}}\n")
    return name


def loop_body(body: Body, text: str, shapes, step: int) -> str:
    sub = inner(body)
    state = sub.line(text, "parameter", ["0"])
    counter = sub.line("s32[]", "get-tuple-element", [state], "index=0")
    sub.values.append(Value(counter, "s32", ()))
    for number, (element_type, dims) in enumerate(shapes[1:], 1):
        name = sub.line(sub.program.shape(element_type, dims, plain=True), "get-tuple-element", [state],
                        f"index={number}")
        sub.values.append(Value(name, element_type, tuple(dims)))
    sub.grow(sub.choices.integer(0, 6))
    one = sub.line("s32[]", "constant", [str(step)])
    following = sub.line("s32[]", "add", [counter, one])
    parts = [youngest(sub, *shape) for shape in shapes[1:]]
    root = sub.line(text, "tuple", [following, *parts])
    name = sub.program.name("body")
    sub.program.computations.append(sub.finish(name, root))
    return name


def conditional(body: Body) -> None:
    if body.depth >= DEEPEST:
        return
    by_index = body.choices.chance(40)
    count = body.choices.integer(1, 3) if by_index else 2
    chooser = body.like("s32", ()) if by_index else body.like("pred", ())
    wanted = [(v.type, v.dims) for v in plain_arguments(body, body.choices.pick((1, 1, 2)))]
    arguments = plain_arguments(body, count)
    names = []
    for argument in arguments:
        sub = inner(body)
        fill(sub, [argument])
        sub.grow(sub.choices.integer(0, 4))
        names.append(close(sub, wanted, "branch"))
    if by_index:
        attributes = [f"branch_computations={{{', '.join(names)}}}"]
    else:
        attributes = [f"true_computation={names[0]}", f"false_computation={names[1]}"]
    if len(wanted) == 1:
        name = body.line(body.program.shape(*wanted[0], plain=True), "conditional", [chooser, *arguments], *attributes)
        body.values.append(Value(name, *wanted[0]))
    else:
        body.emit_tuple(wanted, "conditional", [chooser, *arguments], *attributes)


def map_(body: Body) -> None:
    value = body.some(types=("f32", "s32", "f64"))
    other = body.like(value.type, value.dims)
    function = body.program.shared(
        f"mapped {value.type}",
        f"$ {{\n  a = {value.type}[] parameter(0)\n  b = {value.type}[] parameter(1)\n"
        f"  s = {value.type}[] subtract(a, b)\n  ROOT r = {value.type}[] maximum(s, a)\n}}\n")
    every = ",".join(str(d) for d in range(len(value.dims)))
    body.emit(value.type, value.dims, "map", [value, other], f"dimensions={{{every}}}", f"to_apply={function}")


CALLING = {call: 2, fusion: 2, while_: 3, conditional: 3, map_: 1}
