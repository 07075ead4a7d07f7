"""The device under measurement: the GPU through hloc's own runtime, or the emulated driver on tiny sizes.

    device = Device(emulated=False); program = device.program(hlo_text); device.seconds(program)
"""
from __future__ import annotations

import dataclasses
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gpu_sections.programs import ROOT, container_path
from hloc import api
from hloc.inputs import Parameter, check_arrays
from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.ir.shapes import array as array_shape
from hloc.kernels.plan import Program
from hloc.targets.cuda import container
from hloc.targets.cuda.compiler import compile_cuda, compiler_version
from hloc.targets.cuda.container import Container, Geometry
from hloc.targets.cuda.execution import context, graphs, loaded, runtime
from hloc.targets.cuda.execution.tuning import chosen_variants
from hloc.targets.cuda.gpus import DEFAULT, GPUS
from hloc.targets.cuda.kernel_images import images_of
from hloc.targets.cuda.sources import DEVICE, CudaSources, make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.inlining import HEADERS, inline_includes

TESTS = ROOT / "tests"
AHEAD = "HLOC_GPU_AHEAD"
MOST_RECORDED = 50                  # nodes of a program that is timed in a graph of several runs
TOGETHER_SECONDS, MOST_CONCURRENT = 2e-3, 50     # of runs that are timed as one


class Device:
    """cuda: pycuda.driver or its stand-in; machine: the facts that hloc compiles for. With HLOC_GPU_AHEAD=h200 there is
    no device: programs are only compiled."""

    def __init__(self, emulated: bool):
        self.emulated = emulated
        if ahead := os.environ.get(AHEAD):
            self.machine = GPUS[ahead]
            return
        if emulated:
            sys.path.insert(0, str(TESTS))
            from cuda_emulation import driver
            driver.install(SimpleNamespace(setattr=setattr))
            self.images_of, self.build_text = driver.images_of, driver.build_text
        self.cuda = context.driver()
        self.machine = GPUS[DEFAULT] if emulated else context.device_machine()
        if arch := os.environ.get("HLOC_GPU_TARGET"):
            self.machine = dataclasses.replace(self.machine, arch=arch)

    def facts(self) -> dict:
        version, compiler = self.cuda.get_driver_version(), compiler_version()
        name = self.cuda.Device(0).name()
        return {"device": name, "name": re.sub(r"\W+", "-", name.lower()).strip("-"), "emulated": self.emulated,
                "driver": f"{version // 1000}.{version % 1000 // 10}",
                "compiler": f"{compiler // 1000}.{compiler % 1000 // 10}"}

    def size(self, full: int, tiny: int) -> int:
        """A size for the device, or for the emulation."""
        return tiny if self.emulated else full

    # -- programs ------------------------------------------------------------------------------------------------------

    def program(self, text: str | Path, arrays: Iterable[np.ndarray] | None = None, fusion: str = "on",
                name: str = "") -> runtime.CudaBackend:
        """An HLO module, compiled and loaded, its parameters (random ones, if none are given) on the device. name: of
        the case that `prepare` may have compiled."""
        made = container_path(name, fusion) if name else None
        return self.started(container.read(made) if made and made.exists() else self.packed(text, fusion), arrays)

    def packed(self, text: str | Path, fusion: str = "on", tuning: Path | None = None) -> Container:
        """An HLO module, compiled. tuning: by the choices of this file."""
        planned = self.planned(text, fusion)
        return self.built(planned, chosen_variants(planned.kernels, self.machine, tuning) if tuning else ())

    def planned(self, text: str | Path, fusion: str = "on") -> Program:
        """The plan of an HLO module."""
        target = cuda_target(self.machine)
        options = api.Options(passes={} if fusion == "on" else {"fusion": fusion})
        return api.plan(api.optimize(api.load(text), target, options), target)

    def loaded(self, program: Program, arrays: Iterable[np.ndarray] | None = None) -> runtime.CudaBackend:
        """A planned program, compiled and loaded."""
        return self.started(self.built(program), arrays)

    def built(self, program: Program, variants: Sequence[str] = ()) -> Container:
        """A planned program as a container."""
        return self.container_of(make_sources(program, self.machine, variants))

    def container_of(self, sources: CudaSources) -> Container:
        """CUDA C, compiled."""
        program = sources.program
        images = (self.images_of if self.emulated else images_of)(sources, self.machine.arch)
        return Container(program.name, self.machine.arch, images, sources.geometry, program.steps, program.parameters,
                         program.results, program.constants, program.arena_size, compiler_version())

    def started(self, packed: Container, arrays: Iterable[np.ndarray] | None = None) -> runtime.CudaBackend:
        """On the device, with its parameters."""
        backend = runtime.CudaBackend(packed, {})
        given = random_arrays(packed.parameters) if arrays is None else list(arrays)
        shaped = [np.reshape(a, p.shape.dimensions) if np.size(a) == p.shape.num_elements else a
                  for a, p in zip(given, packed.parameters)]            # NumPy makes scalars one-dimensional
        backend.send(check_arrays(packed.parameters, shaped))
        backend.wait()
        return backend

    def kernel(self, text: str, start: Geometry) -> Callable[..., None]:
        """A hand-written kernel of pointers; calling it launches it on a stream of its own and waits."""
        if self.emulated:
            image = self.build_text(f"{text}\nHLOC_LAUNCHER({start.function})\n")
        else:
            image = compile_cuda(device_code(text), self.machine.arch, "cubin")
        module = self.cuda.module_from_buffer(image)
        function, stream = module.get_function(start.function), self.cuda.Stream(loaded.NON_BLOCKING)

        def launch(*pointers) -> None:
            function.prepare("P" * len(pointers))
            function.prepared_async_call(start.grid, start.block, stream, *map(int, pointers),
                                         shared_size=start.shared)
        launch.stream = stream
        return launch

    def fill(self, memory, type: str, count: int) -> None:
        """Random numbers: zeros, and numbers that are all the same, multiply faster."""
        (array,) = random_arrays([Parameter("x", array_shape(type, count))])
        stream = self.cuda.Stream(loaded.NON_BLOCKING)
        self.cuda.memcpy_htod_async(int(memory), array.view(np.uint8), stream)
        stream.synchronize()

    # -- times ---------------------------------------------------------------------------------------------------------

    def seconds(self, backend: runtime.CudaBackend, least: float = 0.2, most: int = 200) -> float:
        """The median of a run's seconds on the device, its parameters and results staying there. Runs of few launches
        are one graph: from Python a launch takes longer than a small kernel."""
        backend.run()
        parts = graphs.parts(backend.packed.steps)
        nodes = sum(part.nodes or MOST_RECORDED for part in parts)
        count = 0 if self.emulated else MOST_RECORDED // max(1, nodes)
        if count < 2 or any(k.product for k in backend.packed.kernels):
            return self.median(backend.run, backend.stream, backend.context, least, most)
        return self.in_graph(backend, lambda: [backend.record(backend.packed.steps) for _ in range(count)], least, most
                             ) / count

    def in_graph(self, backend: runtime.CudaBackend, record: Callable[[], object], least: float, most: int) -> float:
        """The median seconds of a graph of what `record` puts on the backend's stream."""
        backend.context.push()
        try:
            graph = graphs.Graph(backend.stream, record)
        finally:
            backend.context.pop()
        try:
            return self.median(graph.launch, backend.stream, backend.context, least, most)
        finally:
            graph.close()

    def median(self, work: Callable[[], None], stream, context, least: float = 0.2, most: int = 200) -> float:
        """The median seconds of `work`, which only starts things on the stream, by the device's own clock. Short work
        is started several times between two looks at it: these take microseconds, as long as a small kernel."""
        fewest = 1 if self.emulated else 5
        if self.emulated:
            least, most = 0.0, 1
        context.push()
        try:
            for _ in range(2):
                work()
            stream.synchronize()
            together = 1 if self.emulated else \
                max(1, min(MOST_CONCURRENT, int(TOGETHER_SECONDS / self._elapsed(work, stream, 1))))
            times: list[float] = []
            while len(times) < fewest or (sum(times) * together < least and len(times) < most):
                times.append(self._elapsed(work, stream, together))
            return statistics.median(times)
        finally:
            context.pop()

    def _elapsed(self, work: Callable[[], None], stream, count: int) -> float:
        """Seconds of one of `count` runs."""
        before, after = self.cuda.Event(), self.cuda.Event()
        before.record(stream)
        for _ in range(count):
            work()
        after.record(stream)
        after.synchronize()
        return max(after.time_since(before) * 1e-3 / count, 1e-9)


def device_code(text: str) -> str:
    """CUDA C with the headers that it names in it."""
    return inline_includes(text, (DEVICE, HEADERS))


def random_arrays(parameters) -> list[np.ndarray]:
    """Small numbers for every parameter: of products no sum overflows."""
    random = np.random.default_rng(0)
    made = []
    for parameter in parameters:
        shape, dtype = parameter.shape.dimensions, numpy_dtype(parameter.shape.element_type)
        if ELEMENT_TYPES[parameter.shape.element_type].kind in ("float", "complex"):
            block = random.normal(size=min(1 << 20, max(1, int(np.prod(shape))))).astype(dtype)
        else:
            block = random.integers(0, 2, size=1 << 10).astype(dtype)
        made.append(np.resize(block, shape))
    return made


def bytes_of(backend: runtime.CudaBackend) -> int:
    """Bytes that a run must at least move: parameters read once, results written once."""
    return sum(v.shape.num_bytes for v in (*backend.packed.parameters, *backend.packed.results))
