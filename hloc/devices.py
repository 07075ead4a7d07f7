"""On how many devices a module runs: what its header says, and what launched this process. Imports nothing large."""
from __future__ import annotations

import os

from hloc.ir import Module

# What the launchers of Open MPI, MPICH and Intel MPI, and Slurm say of the number of processes.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")


def is_launched() -> bool:
    """Whether this process is one of several that an MPI launcher started; looks at the environment only."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in SIZES)


def device_counts(module: Module) -> tuple[int, int]:
    """replica_count and num_partitions of the module's header."""
    return int(module.attributes.get("replica_count", 1)), int(module.attributes.get("num_partitions", 1))
