"""Runs a container on a GPU through PyCUDA, with one allocation and a separate stream; of a program with
collectives, with another stream for these (collectives.py).

In: a Container, loaded (loaded.py), and arrays of the host or the device. Out: arrays of the host, or of the device
(device_arrays.py).

    backend = CudaBackend(packed, {}); backend(arrays)            send, run, fetch
    backend.send(arrays); backend.run(); backend.wait()           the data stays on the device: for measurements

The first run waits after every kernel, so that a fault is reported with the kernel's name and its HLO. From the second
run on, consecutive steps that do not need the host are CUDA graphs (graphs.py), in which small kernels start early
(early_start.py). HLOC_CUDA_GRAPHS=off disables graphs; HLOC_CUDA_EARLY_START=off disables early starts;
HLOC_CUDA_WAIT=on waits after every kernel of every run. A run with a clock (step_clock.py) also has no graphs.
Loops whose number of rounds is not known, and branches, are decided by the device where the plan says so and the driver
can (recording.py), else by the host. HLOC_CUDA_CONDITIONAL=off: always by the host; =on: warns if the driver cannot.
"""
from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from hloc import settings
from hloc.errors import RunError
from hloc.inputs import dlpack
from hloc.inputs.dlpack import DeviceView
from hloc.ir import numpy_dtype
from hloc.ir.narrowing import known
from hloc.kernels.plan import (
    Branch,
    Collective,
    Copy,
    Counter,
    DeviceNumber,
    HostCall,
    Launch,
    Ref,
    Step,
    WhileLoop,
    all_steps,
)
from hloc.targets.cuda.container import Container
from hloc.targets.cuda.execution import graphs
from hloc.targets.cuda.execution.device_arrays import DeviceArray, Fixed
from hloc.targets.cuda.execution.loaded import Inside, Loaded
from hloc.targets.cuda.execution.recording import Recorder, depth_of
from hloc.targets.cuda.execution.step_clock import StepClock
from hloc.targets.host_calls import answered

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.targets.cuda.execution.collectives import CudaCollectives

Argument = Union[np.ndarray, DeviceView, Fixed]


class CudaBackend(Loaded):
    """Also owns the graphs on the device; `close` releases everything. device: which of several (hloc/evaluate), of a
    program with collectives."""

    def __init__(self, packed: Container, functions: dict[HostCall, Callable], clock: StepClock | None = None,
                 device: Device | None = None):
        super().__init__(packed, device.place_here if device is not None else 0)
        self.clock, self.device, self.host_functions, self.runs = clock, device, functions, 0
        self.graphs: dict[int, graphs.Graph] = {}
        self.parts: dict[int, list[graphs.Part]] = {}
        self.lock = threading.RLock()                       # one thread at a time: all runs use the same memory
        self.resident: dict[int, weakref.ref] = {}   # number of a parameter -> the argument that its memory still holds
        self.waits = settings.choice("HLOC_CUDA_WAIT", "off", "on") == "on"
        self.use_graphs = settings.choice("HLOC_CUDA_GRAPHS", "on", "off") == "on" and not self.waits and not clock
        early_start = settings.choice("HLOC_CUDA_EARLY_START", "on", "off") == "on" \
            and self.cuda.get_driver_version() >= graphs.EARLY_DRIVER
        self.this: Any = weakref.proxy(self)                # for parts of it: a cycle would keep all on the device
        self.recorder = Recorder(self.this, packed.kernels, early_start)
        self.collectives: CudaCollectives | None = None
        with Inside(self):
            try:
                self.load()
            except BaseException:
                self.release()
                raise

    def load(self) -> None:
        """Also the stream of collectives, and the nodes of loops that the device decides."""
        super().load()
        self.flag = self.cuda.pagelocked_empty(8, np.uint8)
        if any(isinstance(step, Collective) for step in all_steps(self.packed.steps)):
            self._load_collectives()
        self._load_nodes()
        self.stream.synchronize()

    def _load_collectives(self) -> None:
        from hloc.evaluate import Device
        from hloc.targets.cuda.execution.collectives import CudaCollectives
        table, this = next(iter(self.regions["table"]), 0), self.this
        self.collectives = CudaCollectives(self.cuda, self.device or Device(), self.packed.steps, self.stream, self.gpu,
                                           lambda ref: this.address(ref), table, self.host)

    def _load_nodes(self) -> None:
        """Prepares conditional nodes. If they cannot be made, the host decides, and it warns if they were asked for."""
        setting = settings.choice("HLOC_CUDA_CONDITIONAL", "auto", "on", "off")
        if not self.use_graphs or setting == "off":
            return
        why = self.recorder.load_nodes(self.cuda, self.packed.steps, self.host is not None)
        if why and setting == "on":
            warnings.warn(f"the host decides how loops of {self.packed.name} go on: {why}", RuntimeWarning, 2)

    def close(self) -> None:
        """Releases everything on the device; the backend cannot be used afterwards."""
        if not self.lost:
            with Inside(self):
                self.release()

    def release(self) -> None:
        for graph in self.graphs.values():
            graph.close()
        self.graphs, self.collectives, self.recorder.nodes = {}, None, None
        super().release()

    # -- running -------------------------------------------------------------------------------------------------------

    def __call__(self, arrays: Sequence[Argument]) -> tuple[np.ndarray, ...]:
        with self.lock:
            self.send(arrays)
            self.run()
            return self.fetch()

    def on_device(self, arrays: Sequence[Argument]) -> tuple[DeviceArray, ...]:
        """Like a call, but the results stay on the device, and it does not wait for them."""
        with self.lock:
            self.send(arrays)
            if not all(_lasts(array) for array in arrays):
                self.wait()                                 # for the copies: after that, owners may reuse the memory
            self.run()
            with Inside(self):
                places = zip(self.packed.results, self.regions["result"])
                return tuple(DeviceArray(self, value.shape, address) for value, address in places)

    def fixed(self, array: np.ndarray | DeviceView) -> Fixed:
        """An argument of many calls: it is copied only if the program's memory holds another one."""
        return Fixed(array)

    def device_view(self, given: object) -> DeviceView | None:
        """The memory of an argument that is on the device, after it is computed; None for any other argument."""
        if isinstance(given, DeviceArray):
            return given.view()
        view = dlpack.device_view(given, int(self.stream.handle))
        if view is not None and dlpack.producer_stream(given) is not None:
            with Inside(self):
                self.cuda.Context.synchronize()
        return view

    def send(self, arrays: Sequence[Argument]) -> None:
        """Copies the parameters to the device, except those that are still there from an earlier call."""
        with Inside(self):
            for number, (address, array) in enumerate(zip(self.regions["parameter"], arrays)):
                resident = self.resident.pop(number, None)
                if not isinstance(array, Fixed):
                    self.copy_in(address, array)
                    continue
                if resident is None or resident() is not array.array:
                    self.copy_in(address, array.array)
                self.resident[number] = weakref.ref(array.array)

    def run(self) -> None:
        """Runs the plan on the data on the device; waits for its end only in the first run."""
        with Inside(self):
            if self.clock:
                self.clock.begin()
            self._steps(self.packed.steps)
            if self.clock:
                self.clock.end()
            self.runs += 1

    def wait(self) -> None:
        with Inside(self):
            self._wait()

    def _wait(self) -> None:
        """For all that is on the stream."""
        if self.collectives is not None:
            self.collectives.wait(self.stream)
        self.stream.synchronize()

    def fetch(self) -> tuple[np.ndarray, ...]:
        """The results, in page-locked memory."""
        with Inside(self):
            outputs = tuple(self.pinned(v.shape) for v in self.packed.results)
            for address, array in zip(self.regions["result"], outputs):
                self.copy_out(array, address)
            self._wait()
            return outputs

    def address(self, ref: Ref) -> int:
        """Where a piece of memory is; of a counter in a round that is recorded, its value."""
        return super().address(self.recorder.counters.get(ref, ref))

    def _steps(self, steps: Sequence[Step]) -> None:
        if self.runs == 0 or not self.use_graphs:
            for step in steps:
                self.put(step)
            return
        if id(steps) not in self.parts:
            self.parts[id(steps)] = graphs.parts(steps, self.recorder.nodes is not None)
        for part in self.parts[id(steps)]:
            if part.nodes is not None and part.nodes > 1:
                self._graph(part).launch()
            else:
                for step in part.steps:
                    self.put(step)

    def _graph(self, part: graphs.Part) -> graphs.Graph:
        if id(part) not in self.graphs:
            self.graphs[id(part)] = graphs.Graph(self.stream, partial(self.record, part.steps),
                                                   keep=depth_of(part.steps) > 0)
        return self.graphs[id(part)]

    def record(self, steps: Sequence[Step]) -> None:
        """Puts steps on the stream, for a graph (recording.py)."""
        self.recorder.record(steps)

    def put(self, step: Step) -> None:
        """Runs one step, or puts it on the stream."""
        run: dict[type, Callable[[Any], None]] = {
            Launch: self._launch, Copy: self._copy, WhileLoop: self._while, Branch: self._branch,
            HostCall: self._host_call, Collective: self._collective, DeviceNumber: self._device_number}
        run[type(step)](step)

    def _launch(self, step: Launch) -> None:
        geometry = self.packed.kernels[step.kernel]
        try:
            addresses = [self.address(ref) for ref in step.arguments]
            if geometry.maps:
                addresses.append(self.maps[step])
            with self._timed(step):
                if geometry.product:
                    self.functions[step.kernel](addresses, self.stream.handle)
                else:
                    self.functions[step.kernel].prepared_async_call(
                        geometry.grid, geometry.block, self.stream, *addresses, shared_size=geometry.shared)
            if self.runs == 0 or self.waits:
                self._wait()
        except self.cuda.Error as error:
            raise RunError(f"the GPU stopped in kernel {geometry.function}: {error}\n  it computes {geometry.about}"
                           ) from None

    def _copy(self, step: Copy) -> None:
        to, source = self.address(step.destination), self.address(step.source)
        with self._timed(step):
            if self.host is not None:
                self.host.copy(to, source, step.source.size, self.stream)
            else:
                self.cuda.memcpy_dtod_async(to, source, step.source.size, self.stream)

    def _collective(self, step: Collective) -> None:
        """The start of one, on the stream of communication, or its end, on that of kernels."""
        own = self.collectives
        assert own is not None                              # as _load sees to
        with self.clock.around(step, self.cuda, self.stream if step.is_done else own.stream) \
                if self.clock else nullcontext():
            (own.done if step.is_done else own.start)(step)
        if step.is_done and self.waits:
            self._wait()

    def _device_number(self, step: DeviceNumber) -> None:
        device = self.device.number if self.device is not None else 0
        number = device // step.divisor % step.modulus
        with self._timed(step):
            self.cuda.memset_d32_async(self.address(step.result), number, 1, self.stream)

    def _timed(self, step: Step) -> AbstractContextManager:
        return self.clock.around(step, self.cuda, self.stream) if self.clock else nullcontext()

    def _read(self, ref: Ref, dtype) -> int:
        value = self.flag[:np.dtype(dtype).itemsize]
        self.copy_out(value, self.address(ref))
        self._wait()
        return int(value.view(dtype)[0])

    def _while(self, step: WhileLoop) -> None:
        """Runs a loop. A known trip count needs no flag; else the host reads one byte per iteration."""
        with self.clock.loop(step) if self.clock else nullcontext(lambda: None) as iteration:
            if step.trip_count is not None:
                for number in range(step.trip_count):
                    iteration()
                    for counter in step.counters:
                        self._count(counter, number)
                    self._steps(step.body)
                return
            self._steps(step.condition)
            while self._read(known(step.flag), np.uint8):
                iteration()
                self._steps(step.body)
                self._steps(step.condition)

    def _count(self, counter: Counter, number: int) -> None:
        value = counter.in_round(number)
        self.cuda.memcpy_dtod_async(self.address(counter.place), self.address(value), value.size, self.stream)

    def _branch(self, step: Branch) -> None:
        if step.selector_type == "pred":
            chosen = 0 if self._read(step.selector, np.uint8) else 1
        else:
            chosen = self._read(step.selector, np.int32)
        last = len(step.branches) - 1
        self._steps(step.branches[chosen if 0 <= chosen < last else last])

    def _host_call(self, step: HostCall) -> None:
        with self.clock.around_host(step) if self.clock else nullcontext():
            self._call_host(step)

    def _call_host(self, step: HostCall) -> None:
        inputs = []
        for ref, shape in step.arguments:
            array = np.empty(shape.dimensions, numpy_dtype(shape.element_type))
            self.copy_out(array, self.address(ref))
            inputs.append(array)
        self._wait()
        for (ref, _), answer in zip(step.results, answered(step, self.host_functions[step], inputs)):
            self.copy_in(self.address(ref), np.ascontiguousarray(answer))
        self.stream.synchronize()


def _lasts(array: Argument) -> bool:
    """Whether the memory of an argument does not change until everything on the stream has run."""
    return isinstance(array, Fixed) or isinstance(array, DeviceView) and isinstance(array.holder, DeviceArray)
