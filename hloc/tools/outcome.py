"""Why a check fails, in words that are the same for the same reason: what `hloc reduce` must keep.

    outcome_of(lambda: check(module, arrays))      {"differs"}
                                                   {"differs: contraction (fma)"}
                                                   {"differs: NaN or infinity at other places"}
                                                   {"error 4: custom-call target 'mystery' has no meaning"}
                                                   {"fault IndexError in hloc/passes/fusion/edges.py, join"}

One for each reason; none where all agrees. A result that rounding alone moves as far agrees: a smaller module that
merely becomes unstable does not show the fault.
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
    """What comes of a comparison."""
    try:
        rows = run()
    except HlocError as error:
        first = (error.message.splitlines() or [""])[0]
        return frozenset([f"error {error.code}: {_VARIES.sub('_', first)}"])
    except Exception as error:                       # a fault of hloc itself: what is to become small
        return frozenset([f"fault {type(error).__name__}{_place(error)}"])
    return frozenset(_reason(r) for r in rows if not (r.agrees or r.is_unstable))


def is_same(outcome: frozenset[str], wanted: frozenset[str]) -> bool:
    """Whether a smaller module fails for no reason but those wanted."""
    return bool(outcome) and outcome <= wanted


def _reason(row: Difference) -> str:
    told = [*filter(None, [row.note.partition(":")[0]]), *(c.partition(":")[0] for c in row.causes)]
    return f"differs: {', '.join(told)}" if told else "differs"


def _place(error: Exception) -> str:
    """The innermost function of hloc's own, behind the command line."""
    frames = [(Path(f.filename), f.name) for f in traceback.extract_tb(error.__traceback__)]
    own = [(path, name) for path, name in frames if path.is_relative_to(PACKAGE) and path != Path(__file__)
           and path.parent != PACKAGE / "cli"]
    return f" in hloc/{own[-1][0].relative_to(PACKAGE)}, {own[-1][1]}" if own else ""
