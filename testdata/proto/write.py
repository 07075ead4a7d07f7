"""Write the binary forms of the modules in this folder: XLA's own of every .hlo, and a snapshot and a text proto.

    python testdata/proto/write.py          needs jaxlib

The .hlo is written anew as XLA prints what it reads from the proto: the two are the same module, name by name.
"""
from pathlib import Path

import numpy as np
from jaxlib import _hlo

import hloc
from hloc.proto import write_text_proto
from hloc.proto.literals import write_literal
from hloc.proto.wire import encode
from hloc.proto.writer import module_record

HERE = Path(__file__).parent


def main() -> None:
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    for path in sorted(HERE.glob("*.hlo")):
        proto = _hlo.hlo_module_from_text(path.read_text()).as_serialized_hlo_module_proto()
        path.with_suffix(".hlo.pb").write_bytes(proto)
        path.write_text(_hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string(options) + "\n")
    module = hloc.load(HERE / "sum.hlo")
    parameter, = module.entry.parameters
    values = (np.array([1, 2, 3], np.float32), np.array(4, np.float32))
    snapshot = {"hlo": {"hlo_module": module_record(module)}, "arguments": [write_literal(parameter.shape, values)]}
    (HERE / "snapshot.pb").write_bytes(encode(snapshot, "HloSnapshot"))
    (HERE / "sum.pbtxt").write_text(write_text_proto(module))


if __name__ == "__main__":
    main()
