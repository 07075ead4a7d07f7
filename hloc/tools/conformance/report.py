"""Records as counts, a table, and JSON."""
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hloc.errors import printable
from hloc.tools.conformance.runner import Record
from hloc.tools.conformance.verdicts import CHECKS, GOOD, class_of

KINDS = ("agrees", "unstable", "differs", "unsupported", "error", "traceback", "crash", "hang", "memory", "no judge")


def counts(records: list[Record]) -> dict[str, dict[str, int]]:
    """How many modules have which verdict, by check."""
    return {check: dict(Counter(r.verdicts[check].kind for r in records if check in r.verdicts)) for check in CHECKS}


def classes(records: list[Record]) -> list[tuple[str, list[str]]]:
    """Classes of what is not good, with the modules of each, most frequent first."""
    found: dict[str, list[str]] = {}
    for record in records:
        for check, verdict in record.verdicts.items():
            if verdict.kind not in GOOD and verdict.kind != "no judge":
                found.setdefault(class_of(check, verdict), []).append(record.name)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def table(records: list[Record]) -> str:
    """Checks down, verdicts across."""
    rows = counts(records)
    kinds = [k for k in KINDS if any(k in row for row in rows.values())]
    lines = [f"{'check':12}" + "".join(f"{k:>12}" for k in kinds)]
    lines += [f"{check:12}" + "".join(f"{row.get(k, 0) or '':>12}" for k in kinds) for check, row in rows.items()]
    runs = sum(r.facts.get("xla runs") is True for r in records)
    builds = sum(r.facts.get("cpu builds") == "agrees" for r in records)
    lines.append(f"{len(records)} modules; XLA:CPU runs {runs}; native code of {builds} others was built, not compared")
    return "\n".join(lines)


def listing(records: list[Record], most: int = 60) -> str:
    """Classes of what differs, with an example each."""
    lines = []
    for name, members in classes(records)[:most]:
        lines += [f"{len(members):5}  {printable(name)}", f"       e.g. {printable(members[0])}"]
    return "\n".join(lines)


def write_json(path: Path, records: list[Record]) -> None:
    data = {"counts": counts(records),
            "classes": [{"class": name, "modules": members} for name, members in classes(records)],
            "modules": [{"name": r.name, **r.facts, "checks": {c: v._asdict() for c, v in r.verdicts.items()}}
                        for r in sorted(records, key=lambda record: record.name)]}
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def not_good(path: Path) -> set[str]:
    """Names of the modules of a written report that differ somewhere."""
    return {name for each in json.loads(path.read_text(encoding="utf-8"))["classes"] for name in each["modules"]}


def is_good(records: list[Record]) -> bool:
    return not classes(records)
