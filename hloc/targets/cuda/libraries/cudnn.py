"""cuDNN, NVIDIA's library of convolutions, through ctypes: some twenty-five functions and one struct.

This file uses the functions for single convolutions, not the graph interface: they accept any strides, report the size
of their workspace before they run, and are the same in all of cuDNN 9. The library comes with JAX or PyTorch with CUDA;
`pip install 'hloc[cudnn]'` installs it on other machines.

    call = Cudnn(library()).convolution(CudnnConvolution(...)); call(addresses, stream_handle)

The library is loaded when a program that calls it starts. Raises RunError: no library, a status that is not 0.
"""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hloc.errors import RunError
from hloc.ir import ELEMENT_TYPES
from hloc.targets.cuda.libraries import finding

WORKSPACE = 64 << 20                # bytes
ALIGNMENT = 256                     # of the workspace, which follows the filter, in bytes
NAMES = ("libcudnn.so.9", "libcudnn.so")
MOST_ALGORITHMS = 8
MOST_DIMENSIONS = 5                 # cuDNN's tensors have 4 or 5
# element type -> cudnnDataType_t; also of the sums, and of alpha and beta
DATA = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
SUMS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32"}
SCALARS = {"f32": ctypes.c_float, "f64": ctypes.c_double}
FORMATS = {False: 0, True: 1}       # cudnnTensorFormat_t: NCHW, NHWC
CROSS_CORRELATION = 1               # cudnnConvolutionMode_t
# cudnnMathType_t: tensor cores; tensor cores with operands rounded for them; f32 products at full precision
TENSOR_OP_MATH, ROUNDED_MATH, FMA_MATH = 1, 2, 3
MATH = {"f32": FMA_MATH, "f64": 0, "f16": TENSOR_OP_MATH, "bf16": TENSOR_OP_MATH}
DETERMINISTIC = 1                   # cudnnDeterminism_t
RELU, IDENTITY, PROPAGATE_NAN = 1, 5, 1     # cudnnActivationMode_t, cudnnNanPropagation_t
ONLY_WITHOUT_RELU = 1               # cudnnConvolutionFwdAlgo_t: the one that adds a bias without a ReLU
DIRECTIONS = {"forward": "Forward", "data": "BackwardData", "filter": "BackwardFilter"}


class Tensor(NamedTuple):
    """The argument of the call; the offset in it in elements; sizes and strides of (batch, features, spatial ...)."""

    argument: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Elements from the argument's start to the tensor's end."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides)) + 1


class CudnnConvolution(NamedTuple):
    """direction: a key of DIRECTIONS. x is the image, y the result of the forward convolution. The call computes y
    (forward), x (data) or the filter. The filter (features, channels of a group, spatial ...) is packed at the start of
    the last argument, with channels last or before the spatial dimensions; the workspace follows it. bias: an argument
    with a number for each feature that is added (forward), -1 for none; relu: a ReLU follows."""

    direction: str
    element: str
    x: Tensor
    y: Tensor
    filter: tuple[int, ...]
    channels_last: bool
    padding: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    bias: int = -1
    relu: bool = False

    @property
    def filter_bytes(self) -> int:
        size = math.prod(self.filter) * ELEMENT_TYPES[self.element].bytes
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def scratch(self) -> int:
        """The size of the last argument, in bytes."""
        return self.filter_bytes + WORKSPACE

    def to_json(self) -> list:
        return ["cudnn", *self[:2], list(self.x), list(self.y), *self[4:]]

    @staticmethod
    def from_json(row: list) -> CudnnConvolution:
        """Raises ValueError or TypeError if the row is not a CudnnConvolution."""
        direction, element, x, y, filter, last, padding, strides, dilations, groups, bias, relu = row[1:]

        def numbers(given) -> tuple[int, ...]:
            return tuple(int(n) for n in given)

        def tensor(given) -> Tensor:
            return Tensor(int(given[0]), int(given[1]), numbers(given[2]), numbers(given[3]))
        found = CudnnConvolution(
            str(direction), str(element), tensor(x), tensor(y), numbers(filter), bool(last),
            numbers(padding), numbers(strides), numbers(dilations), int(groups), int(bias), bool(relu))
        lists = (found.x.sizes, found.x.strides, found.y.sizes, found.y.strides, found.filter)
        spatial = (found.padding, found.strides, found.dilations)
        if found.direction not in DIRECTIONS or found.element not in DATA or found.groups < 1 \
                or not 4 <= len(found.filter) <= MOST_DIMENSIONS or {len(n) for n in lists} != {len(found.filter)} \
                or {len(n) for n in spatial} != {len(found.filter) - 2} or min(map(min, lists)) < 0 \
                or min(map(min, spatial)) < 0 or min(found.x.argument, found.x.offset, found.y.argument,
                                                     found.y.offset) < 0 or not found.consistent() \
                or (found.bias >= 0 and found.direction != "forward") or (found.relu and found.bias < 0):
            raise ValueError(f"no convolution of cuDNN: {row!r}")
        return found

    def consistent(self) -> bool:
        """Whether the sizes of image, filter and result are consistent."""
        sizes = zip(self.x.sizes[2:], self.y.sizes[2:], self.filter[2:], self.padding, self.strides, self.dilations)
        return (all(s > 0 and made == 1 + (n + 2 * p - (w - 1) * d - 1) // s and n + 2 * p > (w - 1) * d
                    for n, made, w, p, s, d in sizes)
                and self.x.sizes[0] == self.y.sizes[0] and self.y.sizes[1] == self.filter[0]
                and self.x.sizes[1] == self.filter[1] * self.groups and self.filter[0] % self.groups == 0)

    def fits(self, arguments: Sequence[int]) -> None:
        """arguments: bytes of each. Raises ValueError if they are too small."""
        width = ELEMENT_TYPES[self.element].bytes
        reads = [(t.argument, t.reach) for t in (self.x, self.y)] + [(self.bias, self.filter[0])] * (self.bias >= 0)
        if arguments[-1] < self.scratch or any(
                argument >= len(arguments) - 1 or reach * width > arguments[argument] for argument, reach in reads):
            raise ValueError("a convolution of cuDNN larger than its arguments")


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t, and the equal structs of the other directions."""

    _fields_ = [("algorithm", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float),
                ("memory", ctypes.c_size_t), ("determinism", ctypes.c_int), ("math", ctypes.c_int),
                ("reserved", ctypes.c_int * 3)]


def library():
    """The library of the wheel nvidia-cudnn, or of the system. Raises RunError."""
    return finding.load("cuDNN", "libcudnn", NAMES, "cudnn")


def version() -> str:
    """Of that library. Raises RunError."""
    asked = library().cudnnGetVersion
    asked.restype = ctypes.c_size_t
    return finding.version_text(asked())


class Cudnn:
    """The library's handle in the current context."""

    def __init__(self, loaded):
        self.library, self.handle = loaded, ctypes.c_void_p()
        self.made: list[tuple[str, ctypes.c_void_p]] = []
        self._do("cudnnCreate", ctypes.byref(self.handle))

    def _do(self, name: str, *arguments) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RunError(f"cuDNN refuses: {name} gave status {status}")

    def close(self) -> None:
        for kind, made in self.made:
            self._do(f"cudnnDestroy{kind}Descriptor", made)
        self.made = []
        self._do("cudnnDestroy", self.handle)

    def convolution(self, c: CudnnConvolution) -> Callable[[Sequence[int], int], None]:
        """A function of the call's arguments (addresses; the last one holds filter and workspace) and a stream's
        handle."""
        x, y = (self._tensor(c.element, t) for t in (c.x, c.y))
        filter, description = self._filter(c), self._description(c)
        order = {"forward": (x, filter, description, y), "data": (filter, y, description, x),
                 "filter": (x, y, description, filter)}[c.direction]
        chosen = self._algorithm(c, order)
        if c.element != "f32":
            self._do("cudnnSetConvolutionMathType", description, chosen.math)
        scalar, width = SCALARS[SUMS[c.element]], ELEMENT_TYPES[c.element].bytes
        one, zero = scalar(1), scalar(0)
        after = self._after(c)

        def call(addresses: Sequence[int], stream: int) -> None:
            places = {id(filter): addresses[-1], **{id(d): addresses[t.argument] + t.offset * width
                                                    for d, t in ((x, c.x), (y, c.y))}}
            first, second, _, result = order
            a, b, to = (ctypes.c_void_p(places[id(d)]) for d in (first, second, result))
            self._do("cudnnSetStream", self.handle, ctypes.c_void_p(stream))
            given = (ctypes.byref(one), first, a, second, b, description, chosen.algorithm,
                     ctypes.c_void_p(addresses[-1] + c.filter_bytes), ctypes.c_size_t(WORKSPACE), ctypes.byref(zero),
                     result, to)
            if after is None:
                return self._do(f"cudnnConvolution{DIRECTIONS[c.direction]}", self.handle, *given)
            bias, activation = after
            return self._do("cudnnConvolutionBiasActivationForward", self.handle, *given, bias,
                            ctypes.c_void_p(addresses[c.bias]), activation, result, to)
        return call

    def _after(self, c: CudnnConvolution) -> tuple[ctypes.c_void_p, ctypes.c_void_p] | None:
        """The descriptors of the bias and of the activation; None without them."""
        if c.bias < 0:
            return None
        ones = (1,) * (len(c.filter) - 2)
        bias = self._tensor(c.element, Tensor(c.bias, 0, (1, c.filter[0], *ones), (c.filter[0], 1, *ones)))
        activation = self._new("Activation")
        self._do("cudnnSetActivationDescriptor", activation, RELU if c.relu else IDENTITY, PROPAGATE_NAN,
                 ctypes.c_double(0))
        return bias, activation

    def _new(self, kind: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._do(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        self.made.append((kind, made))
        return made

    def _tensor(self, element: str, tensor: Tensor) -> ctypes.c_void_p:
        made = self._new("Tensor")
        self._do("cudnnSetTensorNdDescriptor", made, DATA[element], len(tensor.sizes), _ints(tensor.sizes),
                 _ints(tensor.strides))
        return made

    def _filter(self, c: CudnnConvolution) -> ctypes.c_void_p:
        made = self._new("Filter")
        self._do("cudnnSetFilterNdDescriptor", made, DATA[c.element], FORMATS[c.channels_last], len(c.filter),
                 _ints(c.filter))
        return made

    def _description(self, c: CudnnConvolution) -> ctypes.c_void_p:
        made = self._new("Convolution")
        self._do("cudnnSetConvolutionNdDescriptor", made, len(c.padding), _ints(c.padding), _ints(c.strides),
                 _ints(c.dilations), CROSS_CORRELATION, DATA[SUMS[c.element]])
        self._do("cudnnSetConvolutionGroupCount", made, c.groups)
        self._do("cudnnSetConvolutionMathType", made, MATH[c.element])
        return made

    def _algorithm(self, c: CudnnConvolution, order: tuple) -> Performance:
        """The library's first choice among deterministic algorithms with a workspace of at most WORKSPACE; for f32 only
        at full precision."""
        found, count = (Performance * MOST_ALGORITHMS)(), ctypes.c_int()
        self._do(f"cudnnGetConvolution{DIRECTIONS[c.direction]}Algorithm_v7", self.handle, *order, MOST_ALGORITHMS,
                 ctypes.byref(count), found)
        for one in found[:count.value]:
            if one.status == 0 and one.memory <= WORKSPACE and one.determinism == DETERMINISTIC \
                    and (c.element != "f32" or one.math not in (TENSOR_OP_MATH, ROUNDED_MATH)) \
                    and (c.bias < 0 or c.relu or one.algorithm == ONLY_WITHOUT_RELU):
                return one
        raise RunError(f"cuDNN has no algorithm for {c.element} {'x'.join(map(str, c.x.sizes))}, {c.direction}")


def _ints(numbers: Sequence[int]):
    return (ctypes.c_int * len(numbers))(*numbers)
