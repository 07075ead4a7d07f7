"""Custom calls of compilers for other accelerators, a file for each vendor; hloc/passes/vendor_calls.py writes them as
operations."""
from __future__ import annotations

from hloc.ops.vendors.neuron import NEURON_CALLS
from hloc.ops.vendors.poplar import POPLAR_CALLS

VENDOR_CALLS = {**NEURON_CALLS, **POPLAR_CALLS}
