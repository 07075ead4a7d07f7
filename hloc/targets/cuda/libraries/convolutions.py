"""Which convolutions cuDNN can compute: a "convolution" Tile -> a CudnnConvolution and its kernels, or None.

In: the Tile. Out: one of the library's three convolutions: forward; the gradient of the image, if the image has a base
dilation; the gradient of the filter, if the window is larger than the result. Filters have the library's own layout: a
kernel before the call packs them, or a kernel after it stores the computed filter and applies the Tile's epilogue.
Forward convolutions with channels last may have an epilogue of a bias for each feature and a ReLU. Tiles with other
epilogues use hloc's own kernels.
"""
from __future__ import annotations

import math

from hloc.kernels import scalars
from hloc.kernels.ir import INDEX, Buffer, Expr, Store, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.libraries import cudnn
from hloc.targets.cuda.libraries.cudnn import CudnnConvolution, Tensor
from hloc.targets.cuda.libraries.products import named_epilogue
from hloc.targets.cuda.tiles.convolution_facts import constants_of, epilogue, places_of
from hloc.targets.cuda.tiles.finish import finish_of, finish_text
from hloc.targets.cuda.tiles.tiling import BLOCKS_PER_SM, kernel_text, shape_struct
from hloc.targets.printer import comment

SMALLEST = 1 << 24                  # multiply-adds; with fewer the call costs more than the convolution
THREADS = 256


def library_convolution(tile: Tile) -> CudnnConvolution | None:
    """The library's convolution; None if the library cannot compute it in one call."""
    if tile.prologues:
        return None
    facts = dict(tile.parameters)
    element, total = facts["types"]
    types = {b.name: b.type for b in tile.buffers}
    stores = [b.name for b in tile.buffers if b.access != "read"]
    work = facts["batch"] * math.prod(facts["size"]) * facts["features"] * math.prod(facts["window"]) \
        * facts["lhs_features"] // facts["feature_groups"]
    if cudnn.SUMS.get(element) != total or stores != ["out0"] or facts["batch_groups"] != 1 or work < SMALLEST \
            or min(facts["padding_low"], default=0) < 0 and max(facts["base_dilation"]) == 1:
        return None
    found = _filter_gradient(tile, facts) if math.prod(facts["window"]) > math.prod(facts["size"]) else \
        _image_gradient(tile, facts) if max(facts["base_dilation"]) > 1 else _forward(tile, facts)
    rounded = types["out0"] != element if found and (found.direction != "filter" or not tile.epilogue) else \
        element != total
    if found is None or rounded or min(found.padding) < 0 or not found.consistent():
        return None
    return found


def _forward(tile: Tile, facts: dict) -> CudnnConvolution | None:
    groups = facts["feature_groups"]
    found = _convolution(tile, facts, "forward", (facts["features"], facts["lhs_features"] // groups, *facts["window"]),
                         _image(tile, facts), _result(tile, facts), facts["padding_low"], facts["stride"],
                         facts["window_dilation"], groups)
    if not tile.epilogue:
        return found
    after = named_epilogue(tile, lambda position: _in_place(tile, facts, position)) if groups == 1 else None
    if after is None or after[0] not in ("bias", "relu_bias"):
        return None
    bias = next(b for b in tile.buffers if b.name == after[1])
    return found._replace(bias=_number(tile, bias.name), relu=after[0] == "relu_bias") \
        if bias.type == facts["types"][0] else None


def _in_place(tile: Tile, facts: dict, position: Expr) -> bool:
    """Whether an element is stored at its position without an epilogue; used for results with channels last."""
    (own,) = epilogue(tile._replace(epilogue=()), facts, facts["types"][1])
    assert isinstance(own, Store)
    return position == own.position


def _image_gradient(tile: Tile, facts: dict) -> CudnnConvolution | None:
    """The image is the result of a convolution with stride `base_dilation`, whose windows are reversed."""
    if tile.epilogue or facts["feature_groups"] != 1 or max(facts["stride"]) > 1:
        return None
    padding = tuple((w - 1) * d - p for w, d, p in zip(facts["window"], facts["window_dilation"], facts["padding_low"]))
    return _convolution(tile, facts, "data", (facts["lhs_features"], facts["features"], *facts["window"]),
                        _result(tile, facts), _image(tile, facts), padding, facts["base_dilation"],
                        facts["window_dilation"], 1)


def _filter_gradient(tile: Tile, facts: dict) -> CudnnConvolution | None:
    """Batch and features of the image are exchanged; the windows are the result of a convolution."""
    if facts["feature_groups"] != 1 or max(facts["base_dilation"]) > 1 or any(facts["reversal"]):
        return None
    offset, batch, feature, *spatial = facts["lhs"]
    x = Tensor(_number(tile, "lhs"), offset, (facts["lhs_features"], facts["batch"], *facts["lhs_size"]),
               (feature, batch, *spatial))
    offset, channel, feature, *spatial = facts["rhs"]
    y = Tensor(_number(tile, "rhs"), offset, (facts["lhs_features"], facts["features"], *facts["window"]),
               (channel, feature, *spatial))
    return _convolution(tile, facts, "filter", (facts["features"], facts["batch"], *facts["size"]), x, y,
                        facts["padding_low"], facts["window_dilation"], facts["stride"], 1)


def _convolution(tile: Tile, facts: dict, direction: str, filter: tuple[int, ...], x: Tensor, y: Tensor,
                 padding: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], groups: int
                 ) -> CudnnConvolution:
    """The convolution, padded to the fewest spatial dimensions of the library's tensors."""
    more = max(0, 4 - len(filter))

    def wide(numbers: tuple[int, ...], one: int, before: int = 0) -> tuple[int, ...]:
        return (*numbers[:before], *[one] * more, *(int(n) for n in numbers[before:]))
    x, y = (t._replace(sizes=wide(t.sizes, 1, 2), strides=wide(t.strides, 1, 2)) for t in (x, y))
    last = x.strides[1] == 1 and x.sizes[1] > 1
    return CudnnConvolution(direction, facts["types"][0], x, y, wide(filter, 1, 2), last, wide(padding, 0),
                            wide(strides, 1), wide(dilations, 1), groups)


def _image(tile: Tile, facts: dict) -> Tensor:
    return Tensor(_number(tile, "lhs"), facts["lhs"][0], (facts["batch"], facts["lhs_features"], *facts["lhs_size"]),
                  tuple(facts["lhs"][1:]))


def _result(tile: Tile, facts: dict) -> Tensor:
    return Tensor(_number(tile, "out0"), 0, (facts["batch"], facts["features"], *facts["size"]), tuple(facts["result"]))


def _number(tile: Tile, name: str) -> int:
    return [b.name for b in tile.buffers].index(name)


# -- kernels -----------------------------------------------------------------------------------------------------------

def convolution_call(tile: Tile, name: str, gpu: Machine, c: CudnnConvolution) -> tuple[str, tuple[Geometry, ...], int]:
    """Text, launches and scratch bytes of the call and of the kernel that packs or stores the filter."""
    facts = dict(tile.parameters)
    lines = comment((*tile.origin, f"computed by cuDNN, {cudnn.DIRECTIONS[c.direction]}"))
    call = Geometry(name, (1, 1, 1), (1, 1, 1), product=c)
    constants = {**constants_of(facts), "FILTERS": c.filter[0], "FILTER_CHANNELS": c.filter[1],
                 "CHANNELS_LAST": int(c.channels_last)}
    constants["FILTER_STRIDE"], constants["CHANNEL_STRIDE"] = constants["W_O"], constants["W_I"]
    if c.direction == "data":
        constants["FILTER_STRIDE"], constants["CHANNEL_STRIDE"] = constants["W_I"], constants["W_O"]
        constants.update({f"REVERSAL{d}": 1 - constants[f"REVERSAL{d}"] for d in range(3)})
    own, count, element = f"{name}_filter", math.prod(c.filter), c.element
    scratch = Buffer("scratch", element, count, "update" if c.direction == "filter" else "write")
    if c.direction == "filter":
        total = facts["types"][1]
        value = expression(scalars.convert_to(scalars.widen(Var("x", element)), total))
        finish = finish_text(finish_of(tile, epilogue(tile, facts, total), *places_of(constants_of(facts))),
                             (("row", INDEX), ("column", INDEX), ("acc", total)), tile)
        wide = f"[]({c_type(element)} x) -> {c_type(total)} {{ return {value}; }}"
        body = [finish, f"hloc_conv_unpack<{name}_shape>(scratch, {wide}, finish);"]
    else:
        offset = facts["rhs"][0]
        body = [f"hloc_conv_pack<{name}_shape>(rhs{f' + {offset}' if offset else ''}, scratch);"]
    with_scratch = tile._replace(buffers=(*tile.buffers, scratch))
    text = shape_struct(f"{name}_shape", constants) + kernel_text(with_scratch, own, THREADS, body)
    blocks = max(1, min(-(-count // THREADS), gpu.cores * BLOCKS_PER_SM))
    kernel = Geometry(own, (blocks, 1, 1), (THREADS, 1, 1))
    launches = (call, kernel) if c.direction == "filter" else (kernel, call)
    return "\n".join(lines) + "\n" + text, launches, c.scratch

