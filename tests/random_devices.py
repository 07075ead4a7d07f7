"""What random modules say to the host, to other devices and to schedulers: transfers, collectives of one device,
asynchronous forms, tokens, dynamic sizes, custom calls."""
from __future__ import annotations

from random_body import Body, Value, braces
from random_indexing import COMBINERS, combiner, identity

REDUCED = ("f32", "s32", "f64", "bf16", "u8")


def shape(body: Body, value: Value) -> str:
    return body.program.shape(value.type, value.dims, plain=True)


def row_major(body: Body, value: Value) -> Value:
    """The value in the row-major layout, in which asynchronous forms name it."""
    if body.shape_of(value) == shape(body, value):
        return value
    return body.emit_plain(value.type, value.dims, "copy", [value])


# -- schedulers --------------------------------------------------------------------------------------------------------

def token(body: Body) -> str:
    return body.line("token[]", "after-all")


def dependency(body: Body) -> None:
    value = row_major(body, body.some())
    body.emit_plain(value.type, value.dims, "add-dependency", [value, token(body)])


def domain(body: Body) -> None:
    value = row_major(body, body.some())
    body.emit_plain(value.type, value.dims, "domain", [value],
                    'domain={kind="sharding", entry={maximal device=0}, exit={}}')


def copied(body: Body) -> None:
    value = row_major(body, body.some())
    text = shape(body, value)
    start = body.line(f"({text}, {text}, u32[])", "copy-start", [value])
    body.emit_plain(value.type, value.dims, "copy-done", [start])


def asynchronous(body: Body) -> None:
    """A computation, or one op, that is started and awaited."""
    value = row_major(body, body.some(types=("f32", "s32", "f64")))
    text = shape(body, value)
    state = f"(({text}), {text}, s32[])"
    if body.choices.chance(50):
        start = body.line(state, "negate-start", [value])
        body.emit_plain(value.type, value.dims, "negate-done", [start])
        return
    called = body.program.name("asynchronous")        # of its own: it belongs to one start
    body.program.computations.append(f"{called} {{\n  x = {text} parameter(0)\n  ROOT r = {text} negate(x)\n}}\n")
    start = body.line(state, "async-start", [value], f"calls={called}")
    if body.choices.chance(50):
        start = body.line(state, "async-update", [start], f"calls={called}")
    body.emit_plain(value.type, value.dims, "async-done", [start], f"calls={called}")


# -- the host ----------------------------------------------------------------------------------------------------------

def sent(body: Body) -> None:
    if body.depth:                   # a module's order of transfers is that of its entry
        return
    value = row_major(body, body.some())
    if body.choices.chance(50):
        body.line("token[]", "outfeed", [value, token(body)], f"outfeed_shape={shape(body, value)}")
        return
    attributes = ("channel_id=1", "is_host_transfer=true")
    start = body.line(f"({shape(body, value)}, u32[], token[])", "send", [value, token(body)], *attributes)
    body.line("token[]", "send-done", [start], *attributes)


INFEED = "  i = (({0}), token[]) infeed(t)\n  d = ({0}) get-tuple-element(i), index=0\n"
RECEIVED = """  s = ({0}, u32[], token[]) recv(t), channel_id=2, is_host_transfer=true
  d = ({0}, token[]) recv-done(s), channel_id=2, is_host_transfer=true
"""


def received(body: Body) -> None:
    """In a branch that is not taken: nothing is there to be received."""
    value = row_major(body, body.some())
    text = shape(body, value)
    lines = (INFEED if body.choices.chance(50) else RECEIVED).format(text)
    taken, left = body.program.name("taken"), body.program.name("left")
    body.program.computations += [
        f"{taken} {{\n  x = {text} parameter(0)\n  t = token[] after-all()\n{lines}"
        f"  ROOT r = {text} get-tuple-element(d), index=0\n}}\n", f"{left} {{\n  ROOT x = {text} parameter(0)\n}}\n"]
    never = body.emit("pred", (), "constant", ["false"])
    body.emit_plain(value.type, value.dims, "conditional", [never, value, value], f"true_computation={taken}",
                    f"false_computation={left}")


# -- other devices -----------------------------------------------------------------------------------------------------

def collective(body: Body) -> None:
    """Among the one device that there is."""
    value = row_major(body, body.some(lambda v: len(v.dims) > 0, types=REDUCED))
    if not value.dims:
        return
    text, axis = shape(body, value), f"dimensions={{{body.choices.integer(0, len(value.dims) - 1)}}}"
    apply = f"to_apply={combiner(body, body.choices.pick(COMBINERS[value.kind]), value.type)}"
    groups, pairs = "replica_groups={{0}}", "source_target_pairs={{0,0}}"
    kind, attributes = body.choices.pick((
        ("all-reduce", (groups, apply)), ("reduce-scatter", (groups, axis, apply)), ("all-gather", (groups, axis)),
        ("all-to-all", (groups, axis)), ("collective-broadcast", (groups,)), ("collective-permute", (pairs,)),
        ("all-reduce-start", (groups, apply)), ("all-gather-start", (groups, axis)),
        ("collective-permute-start", (pairs,))))
    if not kind.endswith("-start"):
        body.emit_plain(value.type, value.dims, kind, [value], *attributes)
        return
    result = text if kind == "all-reduce-start" else f"({text}, {text})"
    start = body.line(result, kind, [value], *attributes)
    body.emit_plain(value.type, value.dims, kind.replace("start", "done"), [start])


def ragged_all_to_all(body: Body) -> None:
    """All rows of the one device, to where they were; rarely, for compiled targets refuse it."""
    if not body.choices.chance(10):
        return
    value = row_major(body, body.some(lambda v: len(v.dims) > 0, types=REDUCED))
    if not value.dims:
        return
    into = row_major(body, body.like(value.type, value.dims))
    places = [body.emit_plain("s32", (1,), "constant", [braces([n])]) for n in (0, value.dims[0], 0, value.dims[0])]
    body.emit_plain(value.type, value.dims, "ragged-all-to-all", [value, into, *places], "replica_groups={{0}}")


def number_of_device(body: Body) -> None:
    body.emit("u32", (), body.choices.pick(("partition-id", "replica-id")))


# -- sizes that are known late -----------------------------------------------------------------------------------------

def dynamic_sum(body: Body) -> None:
    """The sum over a part of an array, and the size of that part."""
    value = row_major(body, body.some(lambda v: 0 < len(v.dims) and v.size > 0, types=("s32", "f32")))
    if not value.size or not value.dims:
        return
    at = body.choices.integer(0, len(value.dims) - 1)
    size = body.emit("s32", (), "constant", [str(body.choices.integer(0, value.dims[at]))])
    bounded = ",".join(f"<={n}" if d == at else str(n) for d, n in enumerate(value.dims))
    cut = body.line(f"{value.type}[{bounded}]", "set-dimension-size", [value, size], f"dimensions={{{at}}}")
    body.emit("s32", (), "get-dimension-size", [cut], f"dimensions={{{at}}}")
    start = body.emit(value.type, (), "constant", [identity("add", value.type)])
    every = braces(range(len(value.dims)))
    body.emit(value.type, (), "reduce", [cut, start], f"dimensions={every}",
              f"to_apply={combiner(body, 'add', value.type)}")


def dynamic_reshape(body: Body) -> None:
    value = row_major(body, body.some(lambda v: len(v.dims) == 2 and v.size > 0, rank=2))
    if len(value.dims) != 2 or not value.size:
        return
    sizes = [body.emit("s32", (), "constant", [str(n)]) for n in value.dims[::-1]]
    turned = body.line(f"{value.type}[<={value.dims[1]},<={value.dims[0]}]", "dynamic-reshape", [value, *sizes])
    body.emit("s32", (), "get-dimension-size", [turned], "dimensions={0}")


# -- custom calls ------------------------------------------------------------------------------------------------------

def custom_call(body: Body) -> None:
    """Calls that hand an array on."""
    value = row_major(body, body.some())
    target = body.choices.pick(("Sharding", "annotate_device_placement", "MoveToHost", "MoveToDevice"))
    more = ["sharding={replicated}"] if target == "Sharding" else []
    body.emit_plain(value.type, value.dims, "custom-call", [value], f'custom_call_target="{target}"', *more)


DEVICES = {dependency: 1, domain: 1, copied: 1, asynchronous: 2, sent: 1, received: 1, collective: 3,
           ragged_all_to_all: 1, number_of_device: 1, dynamic_sum: 1, dynamic_reshape: 1, custom_call: 1}
