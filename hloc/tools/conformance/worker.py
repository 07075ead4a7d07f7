"""The process behind process.Worker: python -m hloc.tools.conformance.worker hloc|xla"""
from __future__ import annotations

import sys

from hloc.tools.conformance.process import serve

if __name__ == "__main__":
    if sys.argv[1] == "xla":
        from hloc.tools.conformance.judge import STEPS
    else:
        from hloc.tools.conformance.subject import STEPS
    serve(STEPS)
