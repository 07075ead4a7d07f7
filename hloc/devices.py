"""The number of devices of a module: by its header, and by the launcher of this process; and whether the module is
already partitioned. Imports nothing large.
"""
from __future__ import annotations

import math
import os
import re

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module

# Where the launchers of Open MPI, MPICH, Intel MPI and Slurm store the number of processes.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")


def is_launched() -> bool:
    """Whether an MPI launcher started this process as one of several; reads only the environment."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in SIZES)


def device_counts(module: Module) -> tuple[int, int]:
    """replica_count and num_partitions of the module's header."""
    return int(module.attributes.get("replica_count", 1)), int(module.attributes.get("num_partitions", 1))


# XLA's SPMD partitioner gives the entry such a name.
PARTITIONED = "_spmd"
FOR_A_PARTITIONER = ("SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape",
                     "xla.sdy.LocalToGlobalShape")
TILES = re.compile(r"devices=\[([\d,]+)\]")
AXES = re.compile(r"""\{\s*\\?['"]\w""")                  # {"x"}: a dimension is divided along an axis of a mesh


def refuse_unpartitioned(module: Module) -> None:
    """Raise UnsupportedError at the first instruction whose sharding is not partitioned yet: each device would run the
    whole module, and collectives would add the same numbers."""
    if module.entry.name.endswith(PARTITIONED):
        return
    for instruction in module.instructions():
        if is_divided(instruction):
            raise UnsupportedError(
                f"%{instruction.name} is sharded, and hloc has no SPMD partitioner: several devices can only "
                "run a module that is partitioned already", instruction.span,
                hint="run it on one device, without --devices, or take the module that XLA dumps after "
                     "spmd-partitioning; if the text is partitioned already, remove the shardings")


def is_divided(instruction: Instruction) -> bool:
    """Whether an annotation distributes an array over several devices."""
    sharding = str(instruction.get("sharding", ""))
    for found in TILES.finditer(sharding):
        tiles = [int(n) for n in found[1].split(",") if n]
        rest = sharding[found.end():].partition("devices=")[0]
        if math.prod(tiles[:-1] if "last_tile_dim_replicate" in rest else tiles) > 1 and "manual" not in rest:
            return True
    noted = str(instruction.get("frontend_attributes", ""))
    named = "mesh" in sharding and AXES.search(sharding) or "xla.sdy.sharding=" in noted and AXES.search(noted)
    target = str(instruction.get("custom_call_target", "")).strip('"')
    return bool(named) or target in FOR_A_PARTITIONER
