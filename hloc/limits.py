"""The memory and cores that this process may use: the system's, or less if a container or the shell limits them.

    available_memory()     bytes, or None if unknown
    quota_cores()          the container's CPU quota in cores, or None

Linux describes containers under /sys/fs/cgroup, in two versions; the limits of all parent groups apply, too.
"""
from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUPS, OWN_CGROUPS, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def available_memory() -> int | None:
    """Available bytes: of the system, of each container around the process, of `ulimit -v`."""
    found = [_system_memory(), _address_space()]
    for group in _groups("memory"):
        found.append(_rest(group, "memory.max", "memory.current", "inactive_file"))
        found.append(_rest(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    return min((f for f in found if f is not None), default=None)


def quota_cores() -> int | None:
    """The quota, rounded up: a process with more threads is throttled."""
    found = []
    for group in _groups("cpu"):
        quota, period = (_text(group / "cpu.max") or "max 1").split()[:2]
        if not quota.isdigit():
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            found.append(math.ceil(int(quota) / int(period)))
    return min(found, default=None)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _system_memory() -> int | None:
    for line in _text(MEMORY).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _address_space() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = _text(Path("/proc/self/statm")).split()
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return max(0, limit - int(pages[0]) * resource.getpagesize())


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the process's groups that are visible here, of both versions."""
    for line in _text(OWN_CGROUPS).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = CGROUPS / (controller if controllers else "")
        own = PurePosixPath(place.lstrip("/"))
        for part in (own, *own.parents):
            yield base / part


def _rest(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    """The bytes that a group may still allocate; unused file pages count as free."""
    most, now = _text(group / limit), _text(group / used)
    if not most.isdigit() or not now.isdigit():
        return None
    rows = [line.split() for line in _text(group / "memory.stat").splitlines()]
    back = sum(int(row[1]) for row in rows if len(row) == 2 and row[0] == reclaimable)
    return max(0, int(most) - int(now) + back)
