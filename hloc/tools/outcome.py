"""Why a check fails, as texts that are equal for equal reasons: `hloc reduce` must keep them.

    outcome_of(lambda: check(module, arrays))      {"differs"}
                                                   {"differs: contraction (fma)"}
                                                   {"differs: NaN or infinity at other places"}
                                                   {"error 4: custom-call target 'mystery' has no meaning"}
                                                   {"fault IndexError in hloc/passes/fusion/edges.py, join"}

There is one text for each reason; none if all agrees. An unstable result agrees: a smaller module that is merely
unstable does not show the difference.
"""
from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from hloc.errors import HlocError
from hloc.tools.compare import Difference

# Names, shapes and numbers change as a module gets smaller.
_VARIES = re.compile(r"%[\w.\-]+|(?:\b[a-z]\w*)?\[[\d, <=?]*\](?:\{[^}]*\})?|\{[\d, ]*\}|(?<![\w.])-?\d[\d,.]*")
PACKAGE = Path(__file__).parent.parent


def outcome_of(run: Callable[[], Sequence[Difference]]) -> frozenset[str]:
    """The reasons why a comparison fails."""
    try:
        rows = run()
    except HlocError as error:
        first = (error.message.splitlines() or [""])[0]
        return frozenset([f"error {error.code}: {_VARIES.sub('_', first)}"])
    except Exception as error:                       # an internal error of hloc: a reason, too
        return frozenset([f"fault {type(error).__name__}{_place(error)}"])
    return frozenset(_reason(r) for r in rows if not (r.agrees or r.is_unstable))


def is_same(outcome: frozenset[str], wanted: frozenset[str]) -> bool:
    """Whether a smaller module fails for wanted reasons only."""
    return bool(outcome) and outcome <= wanted


def _reason(row: Difference) -> str:
    told = [*filter(None, [row.note.partition(":")[0]]), *(c.partition(":")[0] for c in row.causes)]
    return f"differs: {', '.join(told)}" if told else "differs"


def _place(error: Exception) -> str:
    """The innermost function of hloc in the traceback, outside the command line."""
    frames = [(Path(f.filename), f.name) for f in traceback.extract_tb(error.__traceback__)]
    own = [(path, name) for path, name in frames if path.is_relative_to(PACKAGE) and path != Path(__file__)
           and path.parent != PACKAGE / "cli"]
    return f" in hloc/{own[-1][0].relative_to(PACKAGE)}, {own[-1][1]}" if own else ""
