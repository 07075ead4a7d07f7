"""From a file in any form to a Module.

In: bytes or text and a name for messages. Out: a Module, not verified yet. The form is detected from the file's
beginning:

    gzip                         unpacked first
    HLO text                     one module, or several with lines `// -----` between them; also in a log of
                                 XLA, with `I0000 00:00:1700000000.000000 1234 file.cc:12] ` in front of each line
    HloModuleProto, HloProto, HloSnapshot (whose arguments become the module's default inputs), or their text form
    StableHLO, as MLIR text or bytecode (through the `jax` extra)
    a bundle (hloc/bundles.py), whose inputs become the module's default inputs

    module_of(read_bytes("dump.txt.gz"), "dump.txt.gz", choice="jit_f")
"""
from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from hloc import files
from hloc.errors import HlocError, Span, UsageError
from hloc.ir import Module, Verbatim
from hloc.text.stablehlo import BYTECODE, hlo_of_mlir, is_mlir

MOST_BYTES = 2 << 30
LOG_SEEN_IN = 1 << 20                  # characters at the beginning in which a log's prefix is searched
LOOKED_AT = 1 << 16                    # characters by which the other forms are detected
SHOWN_MODULES = 30
Warn = Callable[[str, Span], None]

FORMS = "modules are HLO text, XLA's protos (.pb, .pbtxt), StableHLO, or gzip of these; inputs go to --inputs"
ELF = b"\x7fELF"                                        # first bytes of shared objects and cubins
_PROTO_TEXT_ENDINGS = (".pbtxt", ".textproto", ".prototxt", ".textpb")
_FIRST_BYTES = (b"\n", b"\x12", b"\x1a", b"\x22")     # of protos: fields 1 to 4, with a length
_PROTO_TEXT = re.compile(r'(?:\s|#[^\n]*(?:\n|\Z))*(?:name|hlo_module|hlo|computations|entry_computation_name)\s*'
                         r'(?:[{<]\s*\w+\s*[:{<]|:\s*["\'{<\[])')
# absl's and glog's form, then TensorFlow's.
_LOG_PREFIX = re.compile(r"^(?:[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] )"
                         r"[^\s:\]]+:\d+\] ?", re.MULTILINE)
_SEPARATOR = re.compile(r"^[ \t]*// -----[ \t\r]*$", re.MULTILINE)
_NAME = re.compile(r"HloModule\s+%?([^\s,{]+)")
# The counts are bounded because each repetition of a group takes memory.
_COMMENTS = re.compile(r"\s*(?:(?://[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*){0,1000}\*/)\s*){0,1000}")


class Part(NamedTuple):
    """One module's text in a file."""

    name: str
    start: int
    end: int


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file. Raises UsageError if it cannot be read."""
    try:
        return files.read(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}",
                         hint="'-' reads standard input" if "pipe" in str(reason) else None) from None


def split_choice(path: str | Path) -> tuple[str, str | None]:
    """Split `model.hlo#2` into path and choice, unless a file has that name."""
    text = str(path)
    if "#" not in text or os.path.exists(text):
        return text, None
    file, _, choice = text.rpartition("#")
    return (file, choice) if file and choice else (text, None)


def module_of(data: bytes | str, name: str, *, choice: str | None = None, strict: bool = False,
              sizes: Mapping[str, int] | None = None, warn: Warn | None = None) -> Module:
    """The module in a file's content; `choice` is the name or the number (from 1) of one of several, `sizes` are
    those of StableHLO's unbounded dimensions.

    Raises HlocError with its place. With `strict`, unknown attributes are errors instead of warnings.
    """
    if isinstance(data, bytes) and data[:2] == b"PK":
        from hloc.bundles import is_bundle
        if is_bundle(data):
            return _bundled(data, name, choice, strict, warn)
    content = data if isinstance(data, str) else _content(data, name)
    if isinstance(content, str) and _is_hlo_text(content, name):
        _refuse_sizes(sizes, name)
        return _text_module(content, name, choice, strict, warn)
    module = _other_module(content, name, sizes, _strict(warn, strict))
    if choice is not None:
        _chosen([Part(module.name, 0, 0)], choice, name)
    return module


def hlo_text(data: bytes, name: str) -> str | None:
    """The text of a file that holds one module as HLO text, in order or not; None where the file is of another form, a
    log, or holds several modules. Raises HlocError for what is neither text nor a module's bytes."""
    content = None if data[:2] == b"PK" else _content(data, name)
    if not isinstance(content, str) or not _is_hlo_text(content, name) or _LOG_PREFIX.search(content[:LOG_SEEN_IN]):
        return None
    return content if len(module_parts(content)) < 2 else None


def _bundled(data: bytes, name: str, choice: str | None, strict: bool, warn: Warn | None) -> Module:
    from hloc.bundles import read_bundle
    case = read_bundle(data, name)
    module = module_of(case.module, f"{name}/{case.name}", choice=choice or case.choice, strict=strict, warn=warn)
    module.default_inputs = case.arrays or module.default_inputs
    return module


def _strict(warn: Warn | None, strict: bool) -> Warn | None:
    def refuse(message: str, span: Span) -> None:
        raise HlocError(message, span)

    return refuse if strict else warn


def _content(data: bytes, name: str) -> bytes | str:
    """Decompress the content; return a str if it is text. Raises HlocError if it is neither text nor a proto."""
    if data[:2] == b"\x1f\x8b":
        data, name = _unpacked(data, name), name.removesuffix(".gz")
    if name.endswith(".pb") or data[:4] == BYTECODE:
        return data
    if data[:4] == ELF:
        raise UsageError(f"{name} is compiled code, not a module",
                         hint="hloc run takes a .so or .cubin of hloc compile; other commands "
                              "need the module that it was compiled from")
    if data[:1] in _FIRST_BYTES:
        from hloc.proto import kind_of
        if kind_of(data):
            return data
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HlocError(f"{name} is not HLO text: byte {error.start} is not UTF-8", hint=FORMS) from None
    if "\0" in text:
        raise HlocError(f"{name} is not HLO text: byte {data.index(0)} is zero", hint=FORMS)
    return text


def _unpacked(data: bytes, name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise HlocError(f"{name} is a damaged gzip file: {error}") from None
    if len(unpacked) > MOST_BYTES:
        raise UsageError(f"{name} holds more than {MOST_BYTES >> 30} GiB")
    return unpacked


def _is_hlo_text(text: str, name: str) -> bool:
    name = name.removesuffix(".gz")
    if name.endswith(_PROTO_TEXT_ENDINGS) or _PROTO_TEXT.match(text[:LOOKED_AT]):
        return False
    return not (name.endswith(".mlir") or is_mlir(text[:LOOKED_AT]))


def _refuse_sizes(sizes: Mapping[str, int] | None, name: str) -> None:
    if sizes:
        raise UsageError(f"--size is for unbounded dimensions of StableHLO, which {name} is not")


def _other_module(content: bytes | str, name: str, sizes: Mapping[str, int] | None, warn: Warn | None) -> Module:
    """The module of a proto, its text form, or MLIR."""
    from hloc.proto import read_proto, read_text_proto
    if isinstance(content, bytes) and not content.startswith(BYTECODE):
        _refuse_sizes(sizes, name)
        return read_proto(content, name, warn)
    if isinstance(content, str) and not (name.removesuffix(".gz").endswith(".mlir") or is_mlir(content[:LOOKED_AT])):
        _refuse_sizes(sizes, name)
        return read_text_proto(content, name, warn)
    proto, attributes = hlo_of_mlir(content, name, sizes)
    module = read_proto(proto, name, warn)
    module.attributes |= {key: Verbatim(value) for key, value in attributes.items()}
    return module


# -- HLO text: logs, and several modules in a file ---------------------------------------------------------------------

def _text_module(text: str, name: str, choice: str | None, strict: bool, warn: Warn | None) -> Module:
    from hloc.text import parse_module
    is_log = _LOG_PREFIX.search(text[:LOG_SEEN_IN]) is not None
    if is_log:
        text = without_log_prefixes(text)
    parts = module_parts(text, is_log)
    if len(parts) == 1 and choice is None and not is_log:
        return parse_module(text, name, strict, warn)
    part = _chosen(parts, choice, name)
    # Blank lines before it keep the line numbers of the whole file.
    return parse_module("\n" * text.count("\n", 0, part.start) + text[part.start:part.end], name, strict, warn)


def without_log_prefixes(text: str) -> str:
    """Replace a log's prefixes by blanks: lines and columns stay those of the file."""
    return _LOG_PREFIX.sub(lambda m: " " * len(m.group()), text)


def module_parts(text: str, is_log: bool = False) -> list[Part]:
    """The modules of a text: between lines `// -----`, and from a line HloModule after the end of a computation.

    In a log, text outside of modules is omitted.
    """
    cuts = [m.span() for m in _SEPARATOR.finditer(text)] if "// -----" in text else []
    cuts += [(start, start) for start in _module_starts(text, is_log)]
    cuts.sort()
    starts, ends = [0, *(c[1] for c in cuts)], [*(c[0] for c in cuts), len(text)]
    parts = []
    for start, end in zip(starts, ends):
        match = _NAME.search(text, start, end)
        if is_log:
            last = _last_brace(text, start, end) if match is not None else None
            if last is None:
                continue
            end = last
        if end > start and (match or not _is_empty(text, start, end)):
            parts.append(Part(match[1] if match else "", start, end))
    return parts or [Part("", 0, len(text))]


def _is_empty(text: str, start: int, end: int) -> bool:
    """Whether a text holds only blanks and comments."""
    while (match := _COMMENTS.match(text, start, end)) is not None and match.end() > start:
        start = match.end()
    return start == end


def _module_starts(text: str, is_log: bool) -> list[int]:
    """The positions of lines that begin with HloModule, after the end of a computation (in a log: anywhere)."""
    found, at = [], text.find("HloModule")
    while at >= 0:
        line = text.rfind("\n", 0, at) + 1
        if not text[line:at].strip() and (is_log or _ends_computation(_line_before(text, line))):
            found.append(line)
        at = text.find("HloModule", at + 1)
    return found


def _ends_computation(line: str) -> bool:
    """Whether a line ends a computation: }, or a computation in one line."""
    return line.startswith("}") or line.endswith("}")


def _line_before(text: str, start: int) -> str:
    """The last line before `start` that is not blank or a comment, stripped."""
    while start > 0:
        begin = text.rfind("\n", 0, start - 1) + 1
        line = text[begin:start].strip()
        if line and not line.startswith("//"):
            return line
        start = begin
    return ""


def _last_brace(text: str, start: int, end: int) -> int | None:
    """The position after the last line that may end a computation."""
    while (at := text.rfind("}", start, end)) >= 0:
        line, close = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        close = len(text) if close < 0 else close
        if _ends_computation(text[line:close].strip()):
            return close
        end = line
    return None


def _chosen(parts: list[Part], choice: str | None, name: str) -> Part:
    """The only part, or the chosen one. Raises a UsageError that lists them."""
    if choice is None and len(parts) == 1:
        return parts[0]
    if choice is None:
        raise UsageError(f"{name} holds {len(parts)} modules{_listing(parts)}",
                         hint=f"choose one by number or name: {name}#2, or --module 2")
    named = [p for p in parts if p.name == choice]
    if len(named) == 1:
        return named[0]
    if choice.isdecimal() and len(choice) < 10 and 0 < int(choice) <= len(parts):
        return parts[int(choice) - 1]
    if named:
        raise UsageError(f"{len(named)} modules of {name} are called {choice}{_listing(parts)}",
                         hint="choose one by its number")
    raise UsageError(f"{name} holds no module {choice}{_listing(parts)}")


def _listing(parts: list[Part]) -> str:
    lines = [f"\n  {i}  {p.name or '(without a name)'}" for i, p in enumerate(parts[:SHOWN_MODULES], 1)]
    return ":" + "".join(lines) + ("\n  ..." if len(parts) > SHOWN_MODULES else "")
