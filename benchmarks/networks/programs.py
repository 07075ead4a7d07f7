"""Networks and single layers, written once over a few operations that JAX and PyTorch each have.

    PROGRAMS["vit"].run(operations, image)          operations: JaxOperations or TorchOperations

Arrays hold features last: images are [batch, height, width, channels]. Sizes of weights follow from the names and sizes
that a program hands to its operations, so that there is no second list of them.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Array = Any                                            # of JAX or of PyTorch
IMAGE = (1, 224, 224, 3)


class Program(NamedTuple):
    """run: of (operations, input). dtype: of weights, input and result; norms and softmax compute in f32."""

    run: Callable[..., Array]
    input: tuple[int, ...]
    dtype: str
    text: str


# -- networks ----------------------------------------------------------------------------------------------------------

def vit(ops, image: Array, width: int = 384, layers: int = 12, heads: int = 6) -> Array:
    """Patches of 16 by 16 and a class token, blocks of attention and of a hidden layer with GELU."""
    x = ops.conv(image, "patches", size=16, outputs=width, stride=16, padding=0)
    x = ops.join(ops.weight("class_token", (1, 1, width), 0.02), x.reshape(1, -1, width))
    x = x + ops.weight("positions", (1, x.shape[1], width), 0.02)
    for k in range(layers):
        name = f"block{k}"
        normal = ops.layer_norm(x, f"{name}_norm1")
        query, key, value = (ops.dense(normal, f"{name}_{part}", width) for part in ("query", "key", "value"))
        x = x + ops.dense(ops.attention(query, key, value, heads, causal=False), f"{name}_out", width)
        hidden = ops.gelu(ops.dense(ops.layer_norm(x, f"{name}_norm2"), f"{name}_hidden", 4 * width))
        x = x + ops.dense(hidden, f"{name}_hidden_out", width)
    return ops.dense(ops.layer_norm(x, "norm")[:, 0], "top", 1000)


def prefill(ops, x: Array, layers: int = 4, heads: int = 16, hidden: int = 2816) -> Array:
    """Layers of a decoder over all rows of a prompt at once: RMS norm, rotary positions, causal attention, SwiGLU."""
    width = x.shape[-1]
    cosines, sines = (ops.weight(name, (x.shape[1], width // heads // 2), 1.0) for name in ("cosines", "sines"))
    for k in range(layers):
        name = f"block{k}"
        normal = ops.rms_norm(x, f"{name}_norm1")
        query, key, value = (ops.dense(normal, f"{name}_{part}", width, bias=False)
                             for part in ("query", "key", "value"))
        query, key = (rotated(ops, a, cosines, sines, heads) for a in (query, key))
        x = x + ops.dense(ops.attention(query, key, value, heads, causal=True), f"{name}_out", width, bias=False)
        normal = ops.rms_norm(x, f"{name}_norm2")
        gate, up = (ops.dense(normal, f"{name}_{part}", hidden, bias=False) for part in ("gate", "up"))
        x = x + ops.dense(ops.silu(gate) * up, f"{name}_down", width, bias=False)
    return ops.rms_norm(x, "norm")


def rotated(ops, x: Array, cosines: Array, sines: Array, heads: int) -> Array:
    """Each head's first and second half as the two coordinates of points, turned by an angle for each row."""
    split = x.reshape(*x.shape[:2], heads, 2, -1)
    first, second = split[:, :, :, 0], split[:, :, :, 1]
    cosines, sines = cosines[:, None], sines[:, None]
    return ops.join(first * cosines - second * sines, first * sines + second * cosines, axis=-1).reshape(x.shape)


def convnext(ops, image: Array, depths=(3, 3, 9, 3), widths=(96, 192, 384, 768)) -> Array:
    """ConvNeXt-T: blocks of a depthwise 7x7 convolution, a layer norm and a hidden layer with GELU."""
    x = ops.layer_norm(ops.conv(image, "stem", size=4, outputs=widths[0], stride=4, padding=0), "stem_norm")
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        if stage:
            x = ops.conv(ops.layer_norm(x, f"down{stage}_norm"), f"down{stage}", size=2, outputs=width, stride=2,
                         padding=0)
        for k in range(depth):
            x = x + convnext_block(ops, x, f"stage{stage}_block{k}")
    return ops.dense(ops.layer_norm(ops.mean_of_places(x), "norm"), "top", 1000)


def convnext_block(ops, x: Array, name: str) -> Array:
    width = x.shape[-1]
    y = ops.layer_norm(ops.depthwise(x, f"{name}_depthwise", size=7), f"{name}_norm")
    y = ops.dense(ops.gelu(ops.dense(y, f"{name}_hidden", 4 * width)), f"{name}_out", width)
    return y * ops.weight(f"{name}_scale", (width,), 0.1)


def resnet50(ops, image: Array) -> Array:
    x = ops.relu(ops.batch_norm(ops.conv(image, "stem", size=7, outputs=64, stride=2, bias=False), "stem_norm"))
    x = ops.max_pool(x)
    for stage, (count, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for k in range(count):
            x = bottleneck(ops, x, f"stage{stage}_block{k}", inner, 2 if stage and not k else 1)
    return ops.dense(ops.mean_of_places(x), "top", 1000)


def bottleneck(ops, x: Array, name: str, inner: int, stride: int) -> Array:
    """1x1 down, 3x3, 1x1 up; where the shape changes, the shortcut has a 1x1 convolution of its own."""
    def layer(x, part, size, outputs, stride=1):
        y = ops.conv(x, f"{name}_{part}", size=size, outputs=outputs, stride=stride, bias=False)
        return ops.batch_norm(y, f"{name}_{part}_norm")
    shortcut = x if x.shape[-1] == 4 * inner else layer(x, "shortcut", 1, 4 * inner, stride)
    y = ops.relu(layer(x, "down", 1, inner))
    y = ops.relu(layer(y, "middle", 3, inner, stride))
    return ops.relu(layer(y, "up", 1, 4 * inner) + shortcut)


# -- single layers -----------------------------------------------------------------------------------------------------

def product(outputs: int) -> Callable[..., Array]:
    return lambda ops, x: ops.dense(x, "layer", outputs)


def convolution(size: int, outputs: int) -> Callable[..., Array]:
    return lambda ops, x: ops.relu(ops.conv(x, "layer", size=size, outputs=outputs))


def depthwise(ops, x: Array) -> Array:
    return ops.depthwise(x, "layer", size=7)


NETWORKS = {
    "vit": Program(vit, IMAGE, "f32", "ViT-S/16"),
    "prefill_f32": Program(prefill, (1, 128, 1024), "f32", "4 layers of a decoder, 128 rows by 1,024"),
    "prefill_bf16": Program(prefill, (1, 128, 1024), "bf16", "the same in bf16"),
    "convnext": Program(convnext, IMAGE, "f32", "ConvNeXt-T"),
    "resnet50": Program(resnet50, IMAGE, "f32", "ResNet-50"),
}
LAYERS = {
    "product_1024": Program(product(1024), (1, 128, 1024), "f32", "128 rows by 1,024 to 1,024"),
    "product_4096": Program(product(4096), (1, 128, 1024), "f32", "128 rows by 1,024 to 4,096"),
    "product_bf16": Program(product(4096), (1, 128, 1024), "bf16", "the same in bf16"),
    "conv_3x3": Program(convolution(3, 256), (1, 14, 14, 256), "f32", "3x3 convolution, 14 by 14 by 256"),
    "conv_1x1": Program(convolution(1, 256), (1, 14, 14, 1024), "f32", "1x1 convolution, 14 by 14 by 1,024 to 256"),
    "depthwise_7x7": Program(depthwise, (1, 28, 28, 192), "f32", "depthwise 7x7 convolution, 28 by 28 by 192"),
}
PROGRAMS = NETWORKS | LAYERS
