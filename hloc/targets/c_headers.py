"""C headers of saved programs, for CPUs and GPUs: descriptions of arrays and functions, and prototypes.

    header("encoder, for C and C++", arrays(program), USE, PUBLIC, "encoder")    NAME in USE and PUBLIC is the program's
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.errors import printable
from hloc.inputs import Parameter
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.plan import Program

C_TYPES = {"pred": "uint8_t", "f32": "float", "f64": "double", "c64": "float _Complex", "c128": "double _Complex",
           **{f"{s}{b}": f"{'u' if s == 'u' else ''}int{b}_t" for s in "su" for b in (8, 16, 32, 64)}}
ESCAPED = [chr(b) if b in set(range(32, 127)) - set(b'"\\?') else f"\\{b:03o}" for b in range(256)]


def c_string(text: str | bytes) -> str:
    """A C string literal with every unusual byte as an octal escape, so that no name can end it."""
    data = text if isinstance(text, bytes) else text.encode()
    return '"' + "".join(map(ESCAPED.__getitem__, data)) + '"'


def comment(text: str) -> str:
    """Text that cannot end a C comment."""
    plain = printable(text).replace("\\", "/").replace("??", "? ?")
    return plain.replace("/*", "/ *").replace("*/", "* /")[:200]


def header(title: str, arrays: Sequence[str], use: str, prototypes: Sequence[str], name: str) -> str:
    """The whole text of a header, for C and C++."""
    guard = f"HLOC_{name.upper()}_H"
    return "\n".join([
        f"/* {title}", " *", *arrays, " *", *use.replace("NAME", name).splitlines(),
        f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif",
        *(p.replace("NAME", name) for p in prototypes), "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def arrays(program: Program) -> list[str]:
    """A line of a comment for each parameter and result."""
    return [*(f" *   inputs[{i}]  {_describe(v)}" for i, v in enumerate(program.parameters)),
            *(f" *   results[{i}] {_describe(v)}" for i, v in enumerate(program.results))]


def _describe(value: Parameter) -> str:
    element_type = value.shape.element_type
    dims = "".join(f"[{d}]" for d in value.shape.dimensions)
    c_type = C_TYPES.get(element_type, f"uint{8 * ELEMENT_TYPES[element_type].bytes}_t as {element_type}")
    return f"{c_type}{dims}  {comment(value.name)}"
