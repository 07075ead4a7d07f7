"""Registers that PTX reads where no path from the kernel's entry has written them.

    unwritten(compile_cuda(source, "sm_90a", "ptx").decode())
    == {"k0_dot": [Unwritten("%rd228", "add.s64 %rd13, %rd228, %rd85", "$L__BB0_3")]}

Such a register holds a value that a loop carries from one step to the next without a first one, or one that is set
under a condition. No step may use it, yet ptxas is free to take any register for it, and takes those that give a wrong
result (docs/gpu.md). It is the set of registers that are live at the entry: a backward dataflow analysis over basic
blocks. What lies in local or shared memory is not looked at. An instruction that the reader does not know is an error.
"""
from __future__ import annotations

import re
from typing import NamedTuple

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"\.(?:entry|func)\b[^;{]*?([\w$]+)\s*\([^{;]*\{", re.DOTALL)
LABEL = re.compile(r"\s*([\w$]+):")
STATEMENT = re.compile(r"\s*([{}]|[^;{}]*(?:\{[^{}]*\}[^;{}]*)*;)")
REGISTER = re.compile(r"%[a-z]+\d+\b|\b[a-zA-Z_]\w*\b")
WAIT = "griddepcontrol.wait;"           # for the kernel before this one
TOUCHES = re.compile(r"^\s*(?:@!?%p\d+\s+)?((?:ld(?!\.param|u)|ldu|st|atom|red|cp|mbarrier|ldmatrix)\.[^;]*;)", re.MULTILINE)
OPERANDS = re.compile(r"(?:[^,{\[(]|\{[^}]*\}|\[[^\]]*\]|\([^)]*\))+")

# Instructions whose first operand, where it is no address, is what they write.
WRITE = frozenset(
    "abs activemask add addc and atom bfe bfi bfind brev clz cnot copysign cos cvt cvta div dp2a dp4a elect ex2 fma fns "
    "isspacep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier min mma mov movmatrix mul mul24 neg not or "
    "popc prmt rcp redux rem rsqrt sad selp set setp shf shfl shl shr sin slct sqrt sub subc suld szext tanh testp vote "
    "xor".split())
WRITE_NOTHING = frozenset(
    "applypriority bar barrier brkpt cp createpolicy discard exit fence griddepcontrol membar nanosleep pmevent prefetch "
    "prefetchu red ret setmaxnreg st stmatrix trap".split())


def before_wait(text: str) -> list[str]:
    """Instructions that touch memory and stand before the wait for the kernel before, of all kernels that have one."""
    starts = [match.end() for match in FUNCTION.finditer(text)]
    bodies = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)])]
    return [found for body in bodies if WAIT in body for found in TOUCHES.findall(body.split(WAIT)[0])]


class Unwritten(NamedTuple):
    """A register, an instruction that reads it, and the label of the innermost loop that carries it ("": none does)."""

    register: str
    read_by: str
    loop: str


class Instruction(NamedTuple):
    text: str
    reads: frozenset[str]
    writes: frozenset[str]      # whatever its guard says: a guarded one keeps nothing from being live before it
    targets: tuple[str, ...]    # labels of branches
    falls: bool                 # the next instruction may follow


class Block(NamedTuple):
    label: str
    body: list[Instruction]
    after: list[int]            # places of the blocks that may follow


def unwritten(ptx: str) -> dict[str, list[Unwritten]]:
    """For every kernel and function of a PTX file, its registers that are live at the entry."""
    text = COMMENT.sub("", ptx)
    return {match.group(1): _live_at_entry(_blocks(_statements(text, match.end())))
            for match in FUNCTION.finditer(text)}


# -- reading -----------------------------------------------------------------------------------------------------------

def _statements(text: str, at: int) -> list[str]:
    """The statements and labels ("name:") of a body, from behind its opening brace to its end."""
    found, depth = [], 1
    while depth:
        if label := LABEL.match(text, at):
            at = label.end()
            found.append(label.group(1) + ":")
            continue
        statement = STATEMENT.match(text, at)
        if statement is None:
            raise ValueError(f"no PTX statement: {text[at:at + 80]!r}")
        at, said = statement.end(), " ".join(statement.group(1).split())
        depth += {"{": 1, "}": -1}.get(said, 0)
        if said not in "{}":
            found.append(said.rstrip("; "))
    return found


def _blocks(statements: list[str]) -> list[Block]:
    """Basic blocks in order; the first one is the entry."""
    names, tables, label = set(), {}, ""
    blocks: list[tuple[str, list[Instruction]]] = [("", [])]
    for said in statements:
        if said.endswith(":"):
            label = said[:-1]
            blocks.append((label, []))
        elif said.startswith(".reg "):
            names.update(_declared(said))
        elif said.startswith(".branchtargets"):
            tables[label] = tuple(re.findall(r"[\w$]+", said)[1:])
        elif not said.startswith("."):
            instruction = _instruction(said, names, tables)
            blocks[-1][1].append(instruction)
            if instruction.targets or not instruction.falls:
                blocks.append(("", []))
    places = {name: n for n, (name, _) in enumerate(blocks) if name}
    return [Block(name, body, _after(n, body, places, len(blocks))) for n, (name, body) in enumerate(blocks)]


def _declared(said: str) -> list[str]:
    """The names of a .reg directive without a count: those of inline assembly. %r<10> are known by their form."""
    return [name for name in re.findall(r"[\w%]+(?!<)\b", said.split(None, 2)[2]) if not name.startswith("%")]


def _after(place: int, body: list[Instruction], places: dict[str, int], count: int) -> list[int]:
    last = body[-1] if body else None
    found = [places[t] for t in last.targets] if last else []
    return found + [place + 1] if (last is None or last.falls) and place + 1 < count else found


def _instruction(said: str, names: set[str], tables: dict[str, tuple[str, ...]]) -> Instruction:
    guard, rest = re.fullmatch(r"(?:@!?(\S+)\s+)?(.*)", said, re.DOTALL).groups()
    name, _, operands = rest.partition(" ")
    kind, parts = name.split(".")[0], [p.strip() for p in OPERANDS.findall(operands)]

    def registers(texts: list[str]) -> frozenset[str]:
        return frozenset(r for t in texts for r in REGISTER.findall(t) if r[0] == "%" or r in names)

    writes, reads, targets = [], parts, ()
    if kind == "bra":
        reads, targets = [], (parts[0],)
    elif kind == "brx":
        reads, targets = parts[:1], tables[parts[1]]
    elif kind == "call":
        writes, reads = ([parts[0]], parts[1:]) if parts[0].startswith("(") else ([], parts)
    elif kind == "wgmma":
        if name.startswith("wgmma.mma_async"):      # scale-d, the fourth operand, says whether old sums are read
            writes, reads = parts[:1], parts[1:] if parts[3] == "0" else parts
    elif kind in WRITE or name.startswith(("bar.red", "barrier.red", "barrier.cta.red")):
        if not parts[0].startswith("["):
            writes, reads = parts[:1], parts[1:]
    elif kind not in WRITE_NOTHING:
        raise ValueError(f"unknown PTX instruction: {said}")
    falls = bool(guard) or kind not in ("bra", "brx", "ret", "exit", "trap")
    return Instruction(said, registers([*reads, guard or ""]) | (registers(writes) if guard else frozenset()),
                       registers(writes), targets, falls)


# -- liveness ----------------------------------------------------------------------------------------------------------

def _live_at_entry(blocks: list[Block]) -> list[Unwritten]:
    """Registers that are read on a path from the entry before anything has written them, by their names."""
    live = _live(blocks)
    loops = sorted((m - n, n) for m, block in enumerate(blocks) for n in block.after if n <= m)
    return [Unwritten(register, _first_reader(blocks, register),
                      next((blocks[n].label for _, n in loops if register in live[n]), ""))
            for register in sorted(live[0], key=lambda r: (len(r), r))]


def _live(blocks: list[Block]) -> list[frozenset[str]]:
    """What is live where each block begins."""
    live, changed = [frozenset()] * len(blocks), True
    reads, writes = zip(*(_reads_and_writes(b.body) for b in blocks), strict=True)
    while changed:
        changed = False
        for n in reversed(range(len(blocks))):
            now = reads[n] | frozenset().union(*(live[m] for m in blocks[n].after)) - writes[n]
            changed |= now != live[n]
            live[n] = now
    return live


def _reads_and_writes(body: list[Instruction]) -> tuple[frozenset[str], frozenset[str]]:
    """What a block reads before it writes it, and all that it writes."""
    reads, writes = set(), set()
    for one in body:
        reads |= one.reads - writes
        writes |= one.writes
    return frozenset(reads), frozenset(writes)


def _first_reader(blocks: list[Block], register: str) -> str:
    """The first instruction that a path from the entry reaches with the register unwritten and that reads it."""
    seen, waiting = {0}, [0]
    for n in waiting:
        for one in blocks[n].body:
            if register in one.reads:
                return one.text
            if register in one.writes:
                break
        else:
            waiting += [m for m in blocks[n].after if m not in seen]
            seen.update(blocks[n].after)
    return ""
