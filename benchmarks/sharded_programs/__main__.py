"""Programs of JAX over several host devices, as HLO before and after XLA's partitioner.

    python benchmarks/sharded_programs FOLDER DEVICES [NAME ...]

writes NAME.before.hlo, NAME.after.hlo and NAME.npz (in_0 ... and out_0 ..., whole arrays) for each program. A process
of its own, since the number of host devices is fixed when JAX starts.
"""
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[2]}"
os.environ["JAX_PLATFORMS"] = "cpu"

import images
import jax
import layers
import models
import numpy as np
import operations
import sequences
from collected import Programs
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _hlo

KINDS = (layers.training, layers.transformers, models.models, operations.shapes, operations.operations, models.manual,
         images.images, sequences.sequences, sequences.pipelines, sequences.steps)


def programs(count: int) -> dict:
    """All of them; the order decides which random numbers each gets."""
    each = Programs(count)
    for kind in KINDS:
        kind(each)
    return each.found


def export(folder: Path, count: int, names: list[str]) -> None:
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    for name, (function, arguments, mesh, taken, given) in programs(count).items():
        if names and name not in names:
            continue
        def placed(spec, mesh=mesh):
            return jax.tree.map(lambda s: NamedSharding(mesh, s), spec, is_leaf=lambda s: isinstance(s, P))
        more = {} if given is None else {"out_shardings": placed(given)}
        lowered = jax.jit(function, in_shardings=placed(taken), **more).lower(*arguments)
        text = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
        (folder / f"{name}.before.hlo").write_text(text)
        compiled = lowered.compile()
        (module,) = compiled.runtime_executable().hlo_modules()
        (folder / f"{name}.after.hlo").write_text(module.to_string(options))
        results = jax.tree.leaves(compiled(*jax.tree.map(jax.device_put, arguments, placed(taken))))
        np.savez(folder / f"{name}.npz", **{f"in_{n}": a for n, a in enumerate(jax.tree.leaves(arguments))},
                 **{f"out_{n}": np.asarray(a) for n, a in enumerate(results)})


if __name__ == "__main__":
    export(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
