"""The number of devices of a module: by its header, and by the launcher of this process; and whether the module is
already partitioned. Imports nothing large.
"""
from __future__ import annotations

import math
import os
import re

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module, Verbatim
from hloc.ir.clone import clone_module
from hloc.sharding.annotation import Sharding
from hloc.sharding.text import parse_sharding

# Where the launchers of Open MPI, MPICH, Intel MPI and Slurm store the number of processes.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")
MOST_DEVICES = 1 << 20          # whose numbers are listed


def is_launched() -> bool:
    """Whether an MPI launcher started this process as one of several; reads only the environment."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in SIZES)


def device_counts(module: Module) -> tuple[int, int]:
    """replica_count and num_partitions of the module's header. Raises UnsupportedError beyond MOST_DEVICES."""
    replicas, partitions = (int(module.attributes.get(key, 1)) for key in ("replica_count", "num_partitions"))
    if max(replicas, partitions, replicas * partitions) > MOST_DEVICES:
        raise UnsupportedError(f"replica_count={replicas} and num_partitions={partitions}: at most {MOST_DEVICES:,} "
                               "devices are supported")
    return replicas, partitions


def with_device_counts(module: Module, replicas: int, partitions: int) -> Module:
    """A copy whose header has the counts of the run: passes may not take it for a module of one device."""
    copy = clone_module(module)
    copy.attributes["replica_count"] = Verbatim(str(replicas))
    copy.attributes["num_partitions"] = Verbatim(str(partitions))
    return copy


# SPMD partitioners turn arrays of all devices into those of each one, and name the entry so.
PARTITIONED = "_spmd"
FOR_A_PARTITIONER = ("SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape",
                     "xla.sdy.LocalToGlobalShape")
AXES = re.compile(r"""\{\s*\\?['"]\w""")                  # {"x"}: a dimension is divided along an axis of a mesh


def needs_partitioner(module: Module) -> Instruction | None:
    """The first instruction whose sharding is not partitioned yet; None if each device runs the text as it
    is."""
    if module.entry.name.endswith(PARTITIONED):
        return None
    return next(filter(is_divided, module.instructions()), None)


def refuse_unpartitioned(module: Module) -> None:
    """UnsupportedError where a module is still to be partitioned: devices that each ran all of it would do the same
    work, and collectives would add up the same numbers."""
    instruction = needs_partitioner(module)
    if instruction is not None:
        raise UnsupportedError(
            f"%{instruction.name} is sharded: the module is for a partitioner, not for each device as it stands",
            instruction.span, hint="hloc.compile_for_mesh and hloc run --mesh partition it")


def is_divided(instruction: Instruction) -> bool:
    """Whether an annotation distributes an array over several devices."""
    target = str(instruction.get("custom_call_target", "")).strip('"')
    if target in FOR_A_PARTITIONER:
        return True
    noted = str(instruction.get("frontend_attributes", ""))
    if "xla.sdy.sharding=" in noted and AXES.search(noted):
        return True
    if "sharding" not in instruction.attributes:
        return False
    one = parse_sharding(str(instruction.get("sharding")), instruction.span)
    return any(divides(part) for part in (one, *one.parts))


def divides(sharding: Sharding) -> bool:
    """Whether it asks for parts of an array."""
    if sharding.kind == "named":
        return any(d.axes for d in sharding.dimensions)
    manual = "manual" in sharding.subgroups
    return sharding.kind == "tiled" and not manual and math.prod(sharding.tiles[:sharding.data_rank]) > 1
