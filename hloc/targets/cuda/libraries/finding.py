"""Finds NVIDIA's shared libraries: in a wheel, in a toolkit, or in the system."""
from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from hloc.errors import RunError


def load(name: str, stem: str, system_names: Sequence[str], extra: str) -> ctypes.CDLL:
    """name: in messages; stem: of the file, e.g. "libcudnn"; extra: hloc's extra that installs it. Raises RunError."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = [str(path) for folder in folders for path in sorted(folder.glob(f"*/lib/{stem}.so.*"))]
    for path in (*found, *system_names):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RunError(f"{name} is not installed ({stem})", hint=f"pip install 'hloc[{extra}]'")


def version_text(number: int) -> str:
    """21805 is 2.18.5, as these libraries count."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
