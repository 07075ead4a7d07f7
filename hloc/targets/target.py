"""The Target record: the functions that compile for and run on one kind of machine.

    target = hloc.targets.find("cpu"); exe = target.executable(program, module, options)
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hloc.errors import UnsupportedError
from hloc.executable import Executable
from hloc.kernels.plan import NO_WORKSPACE, Collective, DeviceNumber, Program, Workspace, all_steps
from hloc.machine import Machine


@dataclass(frozen=True, slots=True)
class Target:
    """name        cpu or cuda: which pipeline (hloc/passes/pipelines.py) and which custom calls
    machine     facts about the hardware to compile for
    executable  (Program, optimized Module, Options) -> Executable
    from_cache  (Module, options of passes, compile a text, compile the module) -> Executable, from a cache of
                programs
    workspace   the scratch memory of its library kernels, for the plan
    """

    name: str
    machine: Machine
    executable: Callable[..., Executable]
    from_cache: Callable[..., Executable] | None = None
    workspace: Workspace = NO_WORKSPACE


def refuse_alone(program: Program, device) -> None:
    """UnsupportedError where a program of several devices would run on one."""
    step = next((s for s in all_steps(program.steps) if isinstance(s, (Collective, DeviceNumber))), None)
    if step is not None and program.devices > 1 and device is None:
        assert step.instruction is not None                 # of a plan that was not saved
        raise UnsupportedError(
            f"'{step.instruction.opcode}' takes several devices, this program is compiled for one",
            step.instruction.span, hint="hloc run --devices N simulates them; under mpirun each process is one")
