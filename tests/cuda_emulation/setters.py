"""Kernels in PTX that set the values of conditional nodes, run one instruction after the other.

In: PTX of one thread without jumps (conditional_nodes.SETTERS). Out: a module as PyCUDA has it. An instruction, register
or parameter that is not known here is an error, as for ptxas.

    module = PtxModule(text, read, set_conditional);  module.get_function("set_loop").prepared_async_call(...)
"""
from __future__ import annotations

import re
from collections.abc import Callable

ENTRY = re.compile(r"\.visible \.entry (\w+) \(([^)]*)\)\s*\{(.*?)\n\}", re.DOTALL)
PARAMETER = re.compile(r"\.param \.u(32|64) (\w+)")
EXTERN = ".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);"
HEAD = re.compile(r"\.version 7\.0\n\.target sm_80\n\.address_size 64\n")
SIZES = {"Q": 64, "P": 64, "I": 32}                         # of PyCUDA's types of arguments


class PtxModule:
    """read: (address, bytes) -> number; set_conditional: (handle, value)."""

    def __init__(self, text: str, read: Callable[[int, int], int], set_conditional: Callable[[int, int], None]):
        assert text.endswith("\0") and HEAD.match(text) and EXTERN in text
        self.entries = {name: PtxFunction(name, parameters, body, read, set_conditional)
                        for name, parameters, body in ENTRY.findall(text)}

    def get_function(self, name: str) -> PtxFunction:
        return self.entries[name]


class PtxFunction:
    def __init__(self, name: str, parameters: str, body: str, read, set_conditional):
        self.name, self.read, self.set_conditional = name, read, set_conditional
        self.parameters = {name: int(size) for size, name in PARAMETER.findall(parameters)}
        self.lines = [line.strip() for line in body.splitlines() if line.strip()]

    def prepare(self, types: str) -> None:
        assert [SIZES[t] for t in types] == list(self.parameters.values()), f"{self.name} does not take {types}"

    def prepared_async_call(self, grid, block, stream, *values: int) -> None:
        assert tuple(grid) == tuple(block) == (1, 1, 1) and len(values) == len(self.parameters)
        assert all(0 <= v < 1 << size for v, size in zip(values, self.parameters.values()))
        stream.do_kernel(lambda early: self.run(dict(zip(self.parameters, values))))

    def run(self, given: dict[str, int]) -> None:
        registers: dict[str, int | None] = {}
        passed: dict[str, int] = {}
        for line in self.lines:
            code, _, rest = line.rstrip(";").partition(" ")
            words = re.split(r",\s*", rest)
            if code == ".reg":
                name, count = re.fullmatch(r"(%\w+?)(?:<(\d+)>)?", words[0].split()[1]).groups()
                registers.update(dict.fromkeys([name] if count is None else [f"{name}{n}" for n in range(int(count))]))
            elif code in ("{", "}", ".param", "ret"):
                continue
            elif code.startswith("st.param."):
                passed[words[0].strip("[]")] = self.value(words[1], registers)
            elif code == "call.uni":
                assert rest == "cudaGraphSetConditional, (first, second)"
                self.set_conditional(passed["first"], passed["second"])
            else:
                assert words[0] in registers, f"{words[0]} is not declared"
                registers[words[0]] = self.result(code, words[1:], registers, given)

    def result(self, code: str, words: list[str], registers, given: dict[str, int]) -> int:
        """Of an instruction that writes a register."""
        if code.startswith("ld.param.u"):
            name = words[0].strip("[]")
            assert int(code.removeprefix("ld.param.u")) == self.parameters[name]
            return given[name]
        values = [self.value(word.strip("[]"), registers) for word in words]
        if code.startswith("ld.global.u"):
            return self.read(values[0], int(code.removeprefix("ld.global.u")) // 8)
        return {"setp.ne.u32": lambda a, b: int(a != b), "selp.u32": lambda a, b, p: a if p else b,
                "min.u32": min}[code](*values)

    @staticmethod
    def value(word: str, registers) -> int:
        value = registers[word] if word.startswith("%") else int(word)
        assert value is not None, f"{word} is read before it is written"
        return value
