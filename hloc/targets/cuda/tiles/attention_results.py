"""How results of attention and of its gradients are stored: a function of the values of adjacent features.

    result_function("finish", out, batches, result, 4)   ->   auto finish = hloc_wide<4>([&](long batch, ...) { ... });

A result is (row, feature, strides): its strides of rows, features and batches, in elements.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Buffer, Var
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.cuda.tiles.new_lines import place_of
from hloc.targets.cuda.tiles.product_facts import vector_of
from hloc.targets.cuda.tiles.tiling import store_sum

Result = tuple[int, int, Sequence[int]]


def features_at_once(out: Buffer, batches: Sequence[int], result: Result, rows: int, features: int) -> int:
    """How many adjacent features fit one store, all of whose places are multiples of its size."""
    row, feature, strides = result
    apart = tuple(stride for size, stride in zip(batches, strides) if size > 1)
    return vector_of(apart, (rows, row), (features, feature), int(ELEMENT_TYPES[out.type].bytes)) if feature == 1 else 1


def result_function(name: str, out: Buffer, batches: Sequence[int], result: Result, width: int = 1) -> str:
    """C function of a batch, row, first feature, and the f32 values of `width` features from there on; it returns a
    function that stores them, rounded to the type of `out`."""
    row, feature, strides = result
    type = c_type(out.type)
    return f"""auto {name} = hloc_wide<{width}>([&](long batch, long row, long feature, const auto &values) {{
  return [=] {{
    const long place = {place_of(batches, 0, strides)} + row * {row} + feature * {feature};
    hloc_pack<{type}, {width}> pack;
#pragma unroll
    for (int v = 0; v < {width}; v++) {{
      const float acc = values[v];
      pack.at[v] = {expression(store_sum(out, Var("place", INDEX), "f32").value)};
    }}
    hloc_put(&{out.name}[place], pack);
  }};
}});"""
