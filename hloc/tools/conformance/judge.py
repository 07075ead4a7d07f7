"""What XLA does with a module, through jaxlib; runs in a worker, since XLA aborts on some texts.

In: requests {"text": path of a text, "data": path for arrays, "work": folder}. Out: per step
    parse     {"accepts": bool, "error"}            prints XLA's own form of the text to work/theirs.hlo
    printed   the same for work/printed.hlo, hloc's print of the module: {"accepts", "error", "same", "difference"}
    verify    {"verdict": ok, invalid or unknown, "error"}
    run       {"runs": bool, "error"}               inputs and results of XLA:CPU go to data
"""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hloc.errors import HlocError
from hloc.inputs import Parameter
from hloc.inputs.sensible import sensible_arrays
from hloc.ir import Instruction, Module, Shape, leaves
from hloc.ops.device_groups import parse_groups
from hloc.text import parse_module
from hloc.tools.compare import compare, nudged
from hloc.tools.conformance.arrays import Arrays, save_arrays
from hloc.tools.xla import XlaProgram, first_line
from hloc.tools.xla_text import flat_entry

DEVICES = 16
MOST_BYTES = 512 << 20              # of inputs and results together
MOST_INTERMEDIATE = 1 << 30
MOST_ELEMENTS = 1 << 20             # of constants printed in full
# Nothing is rounded less often than the text says, and a reduction uses its start value once.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_allow_excess_precision=false --xla_disable_hlo_passes=tree_reduction_rewriter "
                 f"--xla_force_host_platform_device_count={DEVICES}"}
HOST = frozenset("infeed outfeed send recv send-done recv-done".split())
SEVERAL = frozenset("all-reduce all-gather all-to-all collective-permute reduce-scatter collective-broadcast "
                    "ragged-all-to-all".split())


def read_text(path: str | Path) -> str:
    return Path(path).read_text(encoding="utf-8")


# -- text --------------------------------------------------------------------------------------------------------------

def canonical(text: str) -> str:
    """XLA's own print of a text; constants in full unless there are very many. Raises what jaxlib raises."""
    from jaxlib import _hlo
    module = _hlo.hlo_module_from_text(text)
    short = module.to_string()
    if len(re.findall(r"[ (]constant\(\{", short)) == 0 or _constant_elements(short) > MOST_ELEMENTS:
        return short
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)


def _constant_elements(text: str) -> int:
    sizes = re.findall(r"= \w+\[([\d,]*)\]\S* constant\(", text)
    return sum(int(np.prod([int(d) for d in s.split(",") if d], dtype=np.int64)) for s in sizes)


def parse(request: dict) -> dict:
    try:
        text = canonical(read_text(request["text"]))
    except Exception as error:
        return {"accepts": False, "error": str(error)[:3000]}
    Path(request["work"], "theirs.hlo").write_text(text, encoding="utf-8")
    return {"accepts": True}


def printed(request: dict) -> dict:
    theirs = read_text(Path(request["work"], "theirs.hlo"))
    try:
        ours = canonical(read_text(Path(request["work"], "printed.hlo")))
    except Exception as error:
        return {"accepts": False, "same": False, "error": str(error)[:3000]}
    if ours == theirs:
        return {"accepts": True, "same": True}
    pairs = zip(theirs.splitlines(), ours.splitlines())
    pair = next(((a, b) for a, b in pairs if a != b), ("", "one is longer"))
    return {"accepts": True, "same": False, "error": f"{pair[0][:600]}\n{pair[1][:600]}"}


# -- verifier ----------------------------------------------------------------------------------------------------------

class Stop(RuntimeError):
    """Raised by the second hook: the verifier let the module pass."""


_hooked: dict[str, bytes | bool | None] = {}


def install_hooks() -> None:
    """XLA verifies a module right after a hook may have replaced it; a second hook stops what would follow."""
    from jaxlib import _xla
    if _hooked:
        return
    _hooked.update(module=None, seen=False)

    def replace(_: Any) -> Any:
        _hooked["seen"] = _hooked["module"] is not None
        return _hooked["module"]

    def stop(_: Any) -> None:
        if _hooked["module"] is not None:
            raise Stop("stop after the verifier")
    _xla.register_xla_transform("conformance_replace", 0, replace)
    _xla.register_xla_transform("conformance_stop", 1, stop)


def verify(request: dict) -> dict:
    """Compile a stand-in of the same signature and let a hook put the module in its place."""
    from jaxlib import _jax
    text = read_text(request["text"])
    try:
        module = parse_module(text, request["name"])
        flat = flat_entry(module)
        given = text if flat is module else str(Module(module.name, flat.computations, flat.entry))
        stand_in = _jax.mlir.hlo_to_stablehlo(_proto(_stand_in(flat)))
    except Exception as error:
        return {"verdict": "unknown", "error": f"stand-in: {first_line(error)}"}
    install_hooks()
    device, options = _devices(module)
    _hooked.update(module=_proto(given), seen=False)
    try:
        device[0].client.compile_and_load(stand_in, _jax.DeviceList(tuple(device)), options)
        return {"verdict": "unknown", "error": "the hooks did not run"}
    except Exception as error:
        if "stop after the verifier" in str(error):
            return {"verdict": "ok", "error": ""}
        return {"verdict": "invalid" if _hooked["seen"] else "unknown", "error": str(error)[:3000]}
    finally:
        _hooked["module"] = None


def _proto(text: str) -> bytes:
    from jaxlib import _hlo
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def _stand_in(module: Module) -> str:
    """A module of the same entry signature whose body is one custom call."""
    parameters = [p.shape.to_string(False) for p in module.entry.parameters]
    lines = [f"  p{i} = {s} parameter({i})" for i, s in enumerate(parameters)]
    operands = ", ".join(f"p{i}" for i in range(len(parameters)))
    lines.append(f'  ROOT r = {module.entry.root.shape.to_string(False)} custom-call({operands}), '
                 'custom_call_target="stand_in"')
    return "\n".join(["HloModule stand_in", "ENTRY e {", *lines, "}"]).replace("<=", "")


def _devices(module: Module) -> tuple[Any, Any]:
    """Devices for the module's replicas and partitions, as many as there are, and the options that say so."""
    import jax
    from jaxlib import _jax
    jax.config.update("jax_enable_x64", True)
    replicas, partitions = (int(module.attributes.get(k, 1)) for k in ("replica_count", "num_partitions"))
    devices, options = jax.devices("cpu"), _jax.CompileOptions()
    if not 1 < replicas * partitions <= len(devices):
        return devices[:1], options
    build = options.executable_build_options
    places = _jax.DeviceAssignment.create(np.arange(replicas * partitions).reshape(replicas, partitions))
    for each in (options, build):
        each.num_replicas, each.num_partitions, each.device_assignment = replicas, partitions, places
    build.use_spmd_partitioning = partitions > 1
    return devices[:replicas * partitions], options


# -- running -----------------------------------------------------------------------------------------------------------

def run(request: dict) -> dict:
    """Run work/runnable.hlo twice, and once with its inputs moved by one ulp."""
    text = read_text(Path(request["work"], "runnable.hlo"))
    try:
        module = parse_module(text, request["name"])
        reason = not_run(module, text)
        if reason:
            return {"runs": False, "error": f"not run: {reason}"}
        inputs = sensible_arrays(module)
        call = XlaProgram(text)
        outputs = call(inputs)
        again, moved = call(inputs), call(nudged(inputs))
    except HlocError as error:
        return {"runs": False, "error": error.message}
    except Exception as error:
        return {"runs": False, "error": f"{type(error).__name__}: {first_line(error)}"}
    results = [Parameter(f"result.{i}", s) for i, s in enumerate(leaves(module.entry.root.shape))]
    shifts = [float(min(r.error, 1e300)) for r in compare(results, moved, outputs)]
    save_arrays(Path(request["data"]), Arrays(inputs, list(outputs), shifts))
    return {"runs": True, "repeats": all(a.tobytes() == b.tobytes() for a, b in zip(outputs, again)),
            "all_nan": [i for i, o in enumerate(outputs) if o.dtype.kind == "f" and o.size and np.isnan(o).all()]}


def not_run(module: Module, text: str) -> str | None:
    """Why running the module would say nothing, or take too much."""
    opcodes = {i.opcode.removesuffix("-start").removesuffix("-done") for i in module.instructions()}
    if opcodes & HOST:
        return "it talks with the host"
    if any(i.opcode.removesuffix("-start") in SEVERAL and not is_for_one(i) for i in module.instructions()):
        return "it needs several devices"
    if "{...}" in text:
        return "it has an elided constant"
    ends = [*(p.shape for p in module.entry.parameters), module.entry.root.shape]
    if any(_is_open(s) for s in ends):
        return "its entry has dynamic or opaque shapes"
    if sum(s.num_bytes for s in ends) > MOST_BYTES:
        return f"its inputs and results exceed {MOST_BYTES >> 20} MiB"
    if any(i.shape.num_bytes > MOST_INTERMEDIATE for i in module.instructions() if i.shape.is_array):
        return f"an array in it exceeds {MOST_INTERMEDIATE >> 20} MiB"
    return None


def is_for_one(collective: Instruction) -> bool:
    """Whether a collective means the same where there is one device: groups and pairs name no other, and the shape
    does not say so either."""
    named = parse_groups(str(collective.get("replica_groups", collective.get("source_target_pairs", "{}"))))
    if any(number > 0 for group in named for number in group):
        return False
    result = collective.shape
    if not (result.is_tuple and len(collective.operands) > 1):
        return collective.operands[0].shape.compatible(result)
    return Shape.tuple(o.shape for o in collective.operands).compatible(result)


def _is_open(shape: Shape) -> bool:
    stack = [shape]
    while stack:
        top = stack.pop()
        if top.element_type == "opaque" or top.is_dynamic or any(d < 0 for d in top.dimensions):
            return True
        stack.extend(top.tuple_shapes)
    return False


STEPS: dict[str, Callable[[dict], dict]] = {"parse": parse, "printed": printed, "verify": verify, "run": run}
