"""The HLO IR: element types, shapes, attributes, instructions, computations, modules."""
from hloc.ir.attributes import (
    ConvolutionDimensionNumbers,
    PaddingDim,
    SliceDim,
    Verbatim,
    Window,
    WindowDim,
)
from hloc.ir.module import (
    Computation,
    Instruction,
    Module,
    post_order,
    reachable_computations,
    topological_order,
    users,
    window_of,
)
from hloc.ir.shapes import TOKEN, UNBOUNDED, Layout, Shape, array, default_layout, leaves, parts_of, row_major, strides
from hloc.ir.types import ELEMENT_TYPES, element_type_of, holds, numpy_dtype

__all__ = [
    "ConvolutionDimensionNumbers", "PaddingDim", "SliceDim", "Verbatim", "Window", "WindowDim",
    "Computation", "Instruction", "Module", "post_order", "reachable_computations", "topological_order", "users",
    "window_of",
    "TOKEN", "UNBOUNDED", "Layout", "Shape", "array", "default_layout", "leaves", "parts_of", "row_major",
    "strides",
    "ELEMENT_TYPES", "element_type_of", "holds", "numpy_dtype",
]
