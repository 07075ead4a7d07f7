"""A stand-in for libcudnn: the functions that hloc/targets/cuda/libraries/cudnn.py calls, in NumPy, on the emulated memory.

What the real library refuses or misreads without a word is an AssertionError here: tensors beyond their allocation, sizes
that do not belong together, a workspace smaller than announced, descriptors that were given back.

    monkeypatch.setattr(cudnn, "library", FakeCudnn)
"""
from __future__ import annotations

import ctypes
import itertools
import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from cuda_emulation.cublaslt import flat
from cuda_emulation.driver import Stream, _piece

DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 9: ml_dtypes.bfloat16}
NHWC = 1
WORKSPACE_USED = 1 << 16


class FakeCudnn:
    """Handles are numbers; `calls` notes each convolution. first: (algorithm, status, memory, determinism, math) that
    are offered before the good one."""

    alive: set[int] = set()
    first: tuple[tuple[int, int, int, int, int], ...] = ()

    def __init__(self):
        self.objects: dict[int, SimpleNamespace] = {}
        self.calls: list[SimpleNamespace] = []
        self.stream = None
        for kind in ("Tensor", "Filter", "Convolution", "Activation"):
            setattr(self, f"cudnnCreate{kind}Descriptor", self._create)
            setattr(self, f"cudnnDestroy{kind}Descriptor", self._destroy)
        for direction in ("Forward", "BackwardData", "BackwardFilter"):
            setattr(self, f"cudnnGetConvolution{direction}Algorithm_v7", self._algorithms)
            setattr(self, f"cudnnConvolution{direction}", lambda *given, direction=direction: self._run(direction, *given))

    def cudnnCreate(self, handle) -> int:                                           # noqa: N802 - the library's names
        handle._obj.value = 9
        self.alive.add(id(self))
        return 0

    def cudnnDestroy(self, handle) -> int:                                          # noqa: N802
        assert not self.objects
        self.alive.remove(id(self))
        return 0

    def cudnnSetStream(self, handle, stream) -> int:                                # noqa: N802
        assert handle.value == 9
        self.stream = Stream.known[stream.value]
        return 0

    def _create(self, place) -> int:
        place._obj.value = max(self.objects, default=0) + 1
        self.objects[place._obj.value] = SimpleNamespace()
        return 0

    def _destroy(self, thing) -> int:
        del self.objects[thing.value]
        return 0

    def cudnnSetTensorNdDescriptor(self, thing, type, count, sizes, strides) -> int:  # noqa: N802
        assert 4 <= count <= 5 and len(sizes) == len(strides) == count and min(sizes) > 0
        self.objects[thing.value] = SimpleNamespace(dtype=DTYPES[type], sizes=tuple(sizes), strides=tuple(strides))
        return 0

    def cudnnSetFilterNdDescriptor(self, thing, type, form, count, sizes) -> int:   # noqa: N802
        features, channels, *taps = sizes
        order = (features, *taps, channels) if form == NHWC else tuple(sizes)
        strides = [math.prod(order[n + 1:]) for n in range(count)]
        strides = (strides[0], strides[-1], *strides[1:-1]) if form == NHWC else tuple(strides)
        self.objects[thing.value] = SimpleNamespace(dtype=DTYPES[type], sizes=tuple(sizes), strides=strides)
        return 0

    def cudnnSetConvolutionNdDescriptor(self, thing, count, padding, strides, dilations, mode, type) -> int:  # noqa: N802
        assert mode == 1 and type in (0, 1) and len(padding) == len(strides) == len(dilations) == count
        self.objects[thing.value] = SimpleNamespace(padding=tuple(padding), strides=tuple(strides),
                                                    dilations=tuple(dilations), sums=DTYPES[type], groups=1, math=0)
        return 0

    def cudnnSetConvolutionGroupCount(self, thing, groups) -> int:                  # noqa: N802
        self.objects[thing.value].groups = groups
        return 0

    def cudnnSetConvolutionMathType(self, thing, math_type) -> int:                 # noqa: N802
        self.objects[thing.value].math = math_type
        return 0

    def cudnnSetActivationDescriptor(self, thing, mode, nan, coefficient) -> int:     # noqa: N802
        assert mode in (1, 5) and nan == 1 and coefficient.value == 0
        self.objects[thing.value] = SimpleNamespace(relu=mode == 1)
        return 0

    def cudnnConvolutionBiasActivationForward(self, handle, *given) -> int:         # noqa: N802
        *own, z, z_place, bias, bias_place, activation, result, to = given
        relu = self.objects[activation.value].relu
        assert (z, z_place.value) == (result, to.value) and own[6] == (6 if relu else 1)
        status = self._run("Forward", handle, *own[:6], 6, *own[7:], result, to)
        facts = self.objects[bias.value]
        assert facts.sizes == (1, self.objects[result.value].sizes[1], *facts.sizes[2:])
        self.calls[-1].relu = relu
        self.stream.do(lambda: add_bias(self.objects[result.value], to.value, facts, bias_place.value, relu))
        return status

    def _algorithms(self, handle, a, b, description, result, wanted, count, found) -> int:
        assert handle.value == 9 and wanted == len(found) and ctypes.sizeof(found[0]) == 48
        good = (6, 0, WORKSPACE_USED, 1, self.objects[description.value].math)
        plain = (1, *good[1:])
        offers = [*self.first, good, plain] if self.first[-1:] != ((0, 0, 0, 0, 0),) else [*self.first]
        for n, (algorithm, status, memory, determinism, math_type) in enumerate(offers):
            found[n].algorithm, found[n].status, found[n].memory = algorithm, status, memory
            found[n].determinism, found[n].math = determinism, math_type
        count._obj.value = len(offers)
        return 0

    def _run(self, direction, handle, alpha, first, a, second, b, description, algorithm, workspace, size, beta, result, to) -> int:
        assert alpha._obj.value == 1 and beta._obj.value == 0 and algorithm == 6 and size.value >= WORKSPACE_USED
        assert workspace.value % 256 == 0
        _piece(workspace.value, size.value)
        things = [(self.objects[thing.value], place.value) for thing, place in ((first, a), (second, b), (result, to))]
        about = self.objects[description.value]
        self.calls.append(SimpleNamespace(direction=direction, about=about, things=[t for t, _ in things]))
        self.stream.do(lambda: convolve(direction, about, things))
        return 0


def convolve(direction: str, about: SimpleNamespace, things: list) -> None:
    """x, w, y of things = (x, w, y), (w, y, x) or (x, y, w): the last one is computed."""
    order = {"Forward": "xwy", "BackwardData": "wyx", "BackwardFilter": "xyw"}[direction]
    views = {letter: view(*thing) for letter, thing in zip(order, things)}
    x, w, y = (views[letter].astype(np.float64) for letter in "xwy")
    target = {"x": x, "w": w, "y": y}[order[-1]]
    target[...] = 0
    for n, (made, given, taps) in enumerate(zip(y.shape[2:], x.shape[2:], w.shape[2:])):
        span = given + 2 * about.padding[n] - (taps - 1) * about.dilations[n]
        assert made == 1 + (span - 1) // about.strides[n], "sizes that do not belong together"
    groups = about.groups
    assert x.shape[1] == w.shape[1] * groups and y.shape[1] == w.shape[0] and x.shape[0] == y.shape[0]
    features = w.shape[0] // groups
    for group, tap in itertools.product(range(groups), itertools.product(*map(range, w.shape[2:]))):
        k, c = slice(group * features, (group + 1) * features), slice(group * w.shape[1], (group + 1) * w.shape[1])
        for point in itertools.product(*map(range, y.shape[2:])):
            at = tuple(p * s - pad + t * d for p, s, pad, t, d in zip(point, about.strides, about.padding, tap, about.dilations))
            if not all(0 <= i < size for i, size in zip(at, x.shape[2:])):
                continue
            image, result, filter = (slice(None), c, *at), (slice(None), k, *point), (k, slice(None), *tap)
            if direction == "Forward":
                y[result] += x[image] @ w[filter].T
            elif direction == "BackwardData":
                x[image] += y[result] @ w[filter]
            else:
                w[filter] += y[result].T @ x[image]
    views[order[-1]][...] = target.astype(about.sums)
    memory, offset = _piece(things[-1][1], 1)
    memory.written[offset:] = 1


def add_bias(result: SimpleNamespace, to: int, bias: SimpleNamespace, place: int, relu: bool) -> None:
    made = view(result, to)
    total = made.astype(np.float64) + view(bias, place)
    made[...] = np.where(total < 0, 0, total) if relu else total


def view(facts: SimpleNamespace, place: int) -> np.ndarray:
    """A strided tensor in device memory."""
    elements = flat(place, 1 + sum((n - 1) * s for n, s in zip(facts.sizes, facts.strides)), facts.dtype)
    return np.lib.stride_tricks.as_strided(elements, facts.sizes, [s * elements.itemsize for s in facts.strides])
