"""What hloc and XLA did with one module, put side by side.

In: replies of subject.py and of judge.py. Out: a Verdict per check. `kind` is one of
    agrees        as XLA, or as it should be          unstable     differs as one ulp of the inputs does
    differs       other than XLA                      unsupported  hloc says that it cannot
    no judge      XLA says nothing about it           error, traceback, crash, hang, memory
"""
from __future__ import annotations

import re
from typing import NamedTuple

CHECKS = ("parse", "round trip", "verify", "reference", "cpu", "cuda")
GOOD = frozenset(["agrees", "unstable"])


class Verdict(NamedTuple):
    kind: str
    detail: str = ""
    seconds: float = 0.0


def failure_of(reply: dict | None) -> Verdict | None:
    """The verdict on a reply that is no answer: the worker ended, or something other than an HlocError was raised."""
    if reply is None:
        return Verdict("no judge", "not asked")
    if "failure" in reply:
        return Verdict(reply["failure"], reply.get("detail", ""))
    if reply["outcome"] in ("traceback", "memory"):
        return Verdict(reply["outcome"], f"{reply.get('detail', '')}\n{reply.get('place', '')}", reply["seconds"])
    return None


def on_parse(ours: dict, theirs: dict | None) -> Verdict:
    """Both accept, or both reject and hloc says where."""
    failed = failure_of(ours)
    if failed:
        return failed
    outcome, seconds = ours["outcome"], ours["seconds"]
    if outcome == "unlocated":
        return Verdict("error", f"rejected without a place: {ours['detail']}", seconds)
    accepts = outcome == "ok"
    if theirs is None or "accepts" not in theirs:
        return Verdict("no judge", "" if accepts else f"rejected: {ours['detail']}", seconds)
    if accepts == theirs["accepts"]:
        return Verdict("agrees", "" if accepts else f"both reject: {ours['place']}", seconds)
    if accepts:
        return Verdict("differs", f"accepts what XLA rejects: {theirs.get('error', '')}", seconds)
    return Verdict("differs", f"rejects what XLA accepts: {ours['place']}", seconds)


def on_round_trip(ours: dict, theirs: dict | None) -> Verdict:
    """hloc reads its own print as the same, and XLA prints both alike."""
    failed = failure_of(ours)
    if failed:
        return failed
    if ours["outcome"] != "ok":
        return Verdict("differs", f"hloc rejects its own print: {ours['place']}", ours["seconds"])
    if not ours["same"]:
        return Verdict("differs", f"hloc prints it differently the second time: {ours['detail']}", ours["seconds"])
    if theirs is not None and "same" in theirs and not theirs["same"]:
        how = "XLA reads the print as another module" if theirs["accepts"] else "XLA rejects the print"
        return Verdict("differs", f"{how}: {theirs['error']}", ours["seconds"])
    return Verdict("agrees", "", ours["seconds"])


def on_verify(ours: dict, theirs: str | None, error: str) -> Verdict:
    failed = failure_of(ours)
    if failed:
        return failed
    ok, seconds = ours["outcome"] == "ok", ours["seconds"]
    if theirs not in ("ok", "invalid"):
        return Verdict("no judge", "" if ok else f"refused: {ours['detail']}", seconds)
    if ok == (theirs == "ok"):
        return Verdict("agrees", "", seconds)
    if ok:
        return Verdict("differs", f"accepts what XLA refuses: {error}", seconds)
    return Verdict("differs", f"refuses what XLA accepts: {ours['place']}", seconds)


def on_run(ours: dict, repeats: bool) -> Verdict:
    """Results as XLA:CPU has them."""
    failed = failure_of(ours)
    if failed:
        return failed
    seconds = ours["seconds"]
    if ours["outcome"] != "ok":
        return Verdict("unsupported" if ours["outcome"] == "unsupported" else "error", ours["place"], seconds)
    if not repeats:
        return Verdict("no judge", "XLA gives other results each time", seconds)
    if not ours["agrees"]:
        return Verdict("differs", ours["detail"], seconds)
    return Verdict("unstable" if ours["unstable"] else "agrees", "", seconds)


def on_build(ours: dict) -> Verdict:
    """Native code was made; there is nothing to compare with."""
    failed = failure_of(ours)
    if failed:
        return failed
    if ours["outcome"] != "ok":
        return Verdict("unsupported" if ours["outcome"] == "unsupported" else "error", ours["place"], ours["seconds"])
    return Verdict("agrees", "", ours["seconds"])


def class_of(check: str, verdict: Verdict) -> str:
    """The detail without what is of one module only: names, numbers, shapes."""
    lines = [line for line in verdict.detail.splitlines() if line.strip()]
    text = lines[0] if lines else ""
    text = re.sub(r"^(\w[\w ]*: )?\S+:\d+:\d+: error: ", r"\1", text)
    text = re.sub(r"%[\w.\-]+", "%N", text)
    text = re.sub(r"result\.\d+ (\w+)\[[\d,]*\]\[[\d, ]*\].*", r"\1 result", text)
    text = re.sub(r"\b\w+\[[^\]]*\](\{[^}]*\})?", "SHAPE", text)
    text = re.sub(r"-?\b\d[\d.e+\-x]*\b", "#", text)
    return f"{check}: {verdict.kind}: {text[:150]}"
