"""Names of kernels and inlined headers, for generated C and CUDA C.

    c_name(7, "fusion.add") == "k7_fusion_add"
    inline_includes('#include "scalar.h"\\n', (folder,))      the header's text, its own headers in place too
"""
from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

HEADERS = Path(__file__).parent / "c"           # scalar math, shared by all targets
INCLUDE = re.compile(r'^\s*#\s*include\s+"([\w./]+)"\s*$', re.MULTILINE)


def c_name(number: int, name: str) -> str:
    """A C identifier that no other kernel has."""
    clean = re.sub(r"\W", "_", name, flags=re.ASCII)[:40]
    return f"k{number}_{clean}"


def inline_includes(text: str, folders: Sequence[Path], templates: Collection[str] = (),
                    shortened: Callable[[str], str] = lambda text: text) -> str:
    """Replace #include "..." of headers in these folders by their text, each once; `templates` every time; system
    headers stay. shortened: text of a header -> its needed part."""
    seen: set[str] = set()

    def replace(found: re.Match) -> str:
        name = Path(found.group(1)).name
        path = next((p for p in (folder / name for folder in folders) if p.is_file()), None)
        if path is None:
            return found.group(0)
        body = shortened(path.read_text(encoding="utf-8"))
        if name not in templates:
            if name in seen:
                return ""
            seen.add(name)
        return INCLUDE.sub(replace, body.replace("#pragma once", ""))

    return INCLUDE.sub(replace, text)
