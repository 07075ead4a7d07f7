"""The communicator of a run: that of threads (runtime/threads.c) or of MPI processes (mpi.py).

In: a program's library, and the device that it runs on. Out: what knows the address of the hloc_communicator.

    held = communicator_of(device, library);  bases[-1] = held.address
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hloc.evaluate.simulate import SimulatedDevice
from hloc.targets.cpu.execution.threads import ThreadCommunicator, ThreadDevices

if TYPE_CHECKING:
    from hloc.evaluate import Device


class Communicator(Protocol):
    address: int

    def error(self, code: int) -> BaseException:
        """What to raise for such a code of a run."""


def communicator_of(device: Device | None, library) -> Communicator:
    """The communicator of a run on `device`; None: on one alone."""
    if device is None or device.count == 1:
        return ThreadCommunicator(ThreadDevices(library, 1), 0)
    if isinstance(device, SimulatedDevice):
        devices = device.rendezvous.threads(lambda count: ThreadDevices(library, count))
        assert isinstance(devices, ThreadDevices)
        return ThreadCommunicator(devices, device.number)
    from hloc.evaluate.mpi import MpiDevice
    from hloc.targets.cpu.execution.mpi import MpiCommunicator
    assert isinstance(device, MpiDevice)
    return device.communicator(lambda: MpiCommunicator(device, library))
