"""Where instructions were written: the tables of a module's stack frames, for the comments of kernels.

In: the text of FileNames, FunctionNames, FileLocations, StackFrames, as the module keeps it. Out: a place per frame.

    places(tables of frame 1, at line 12 of /a/model.py) == {1: "model.py:12"}
"""
from __future__ import annotations

import re
from collections.abc import Mapping

HEAD = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\s*$", re.MULTILINE)
ROW = re.compile(r"^(\d+)\s+(.*)$", re.MULTILINE)
NUMBER = re.compile(r"(\w+)=(-?\d+)")
FRAME = re.compile(r"stack_frame_id=(\d+)")


def places(tables: str) -> dict[int, str]:
    """"file:line" of each stack frame that has one."""
    if not tables:
        return {}
    heads = list(HEAD.finditer(tables))
    ends = [h.start() for h in heads[1:]] + [len(tables)]
    rows = {h[1]: {int(r[1]): r[2] for r in ROW.finditer(tables, h.end(), end)} for h, end in zip(heads, ends)}
    files = {n: text.strip().strip('"').rpartition("/")[2] for n, text in rows.get("FileNames", {}).items()}
    locations = {n: _numbers(text) for n, text in rows.get("FileLocations", {}).items()}
    found = {}
    for frame, text in rows.get("StackFrames", {}).items():
        location = locations.get(_numbers(text).get("file_location_id", 0), {})
        file = files.get(location.get("file_name_id", 0))
        if file:
            found[frame] = f"{file}:{location['line']}" if location.get("line") else file
    return found


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in NUMBER.findall(text)}


def located(lines: tuple[str, ...], found: Mapping[int, str]) -> tuple[str, ...]:
    """Lines of HLO with stack_frame_id=N replaced by its place; what no table knows stays."""
    return tuple(FRAME.sub(lambda m: found.get(int(m[1]), m[0]), line) for line in lines)
