"""The operations of programs.py in JAX and in PyTorch, and weights for both.

    weights = weights_of(program)                   {name: f32 array}, as JAX has them; the same ones with every run
    f = jax_function(program)                       f(weights, x)
    m = torch_module(program, weights)              m(x); its parameters are the weights

Each library gets weights in the layout that it documents: kernels of dense layers [inputs, outputs] in JAX and
[outputs, inputs] in PyTorch, kernels of convolutions [height, width, inputs, outputs] and [outputs, inputs, height,
width]. Images in PyTorch have the memory format channels_last, which is its fast one on CPUs.
"""
from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

JAX_TYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
EPSILON = 1e-5                                         # of norms


class Operations:
    """What both libraries say alike. weights: arrays by name."""

    def __init__(self, weights):
        self.weights = weights

    def weight(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0):
        return self.weights[name]

    def kernel(self, name: str, *shape: int):
        """Shape as in JAX: outputs last. Scaled so that results have the magnitude of their inputs."""
        return self.weight(f"{name}_kernel", shape, math.prod(shape[:-1]) ** -0.5)

    def bias(self, name: str, outputs: int, wanted: bool):
        return self.weight(f"{name}_bias", (outputs,), 0.1) if wanted else None

    def norm_weights(self, x, name: str):
        return self.weight(f"{name}_scale", (x.shape[-1],), 0.1, 1.0), self.weight(f"{name}_bias", (x.shape[-1],), 0.1)

    def statistics(self, x, name: str):
        """Mean and variance of a batch norm."""
        return (self.weight(f"{name}_mean", (x.shape[-1],), 0.1),
                self.weight(f"{name}_variance", (x.shape[-1],), 0.05, 1.0))


class JaxOperations(Operations):
    def dense(self, x, name, outputs, bias=True):
        y = x @ self.kernel(name, x.shape[-1], outputs)
        return y + self.bias(name, outputs, True) if bias else y

    def conv(self, x, name, size, outputs, stride=1, padding=None, bias=True):
        kernel = self.kernel(name, size, size, x.shape[-1], outputs)
        y = self._conv(x, kernel, stride, size // 2 if padding is None else padding, 1)
        return y + self.bias(name, outputs, True) if bias else y

    def depthwise(self, x, name, size):
        kernel = self.kernel(name, size, size, 1, x.shape[-1])
        return self._conv(x, kernel, 1, size // 2, x.shape[-1]) + self.bias(name, x.shape[-1], True)

    @staticmethod
    def _conv(x, kernel, stride, padding, groups):
        return lax.conv_general_dilated(x, kernel, (stride, stride), [(padding, padding)] * 2,
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)

    def layer_norm(self, x, name):
        scale, bias = self.norm_weights(x, name)
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return (centred * lax.rsqrt(variance + EPSILON) * scale + bias).astype(x.dtype)

    def rms_norm(self, x, name):
        wide = x.astype(jnp.float32)
        scale = self.weight(f"{name}_scale", (x.shape[-1],), 0.1, 1.0)
        return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON) * scale).astype(x.dtype)

    def batch_norm(self, x, name):
        (scale, bias), (mean, variance) = self.norm_weights(x, name), self.statistics(x, name)
        return (x - mean) * (scale * lax.rsqrt(variance + EPSILON)) + bias

    def attention(self, query, key, value, heads, causal):
        query, key, value = (a.reshape(*a.shape[:2], heads, -1) for a in (query, key, value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        scores = scores * query.shape[-1] ** -0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(value.dtype), value)
        return mixed.reshape(*mixed.shape[:2], -1)

    def max_pool(self, x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])

    def join(self, *arrays, axis=1):
        return jnp.concatenate(arrays, axis)

    def mean_of_places(self, x):
        return x.mean((1, 2))

    def gelu(self, x):
        return jax.nn.gelu(x, approximate=False)

    relu, silu = staticmethod(jax.nn.relu), staticmethod(jax.nn.silu)


class Recorder(JaxOperations):
    """Makes the weights that a program asks for."""

    def __init__(self):
        super().__init__({})
        self.random = np.random.default_rng(0)

    def weight(self, name, shape, std, mean=0.0):
        if name not in self.weights:
            self.weights[name] = (mean + std * self.random.standard_normal(shape)).astype(np.float32)
        return self.weights[name]


def weights_of(program) -> dict[str, np.ndarray]:
    recorder = Recorder()
    jax.eval_shape(lambda x: program.run(recorder, x), jax.ShapeDtypeStruct(program.input, jnp.float32))
    return dict(sorted(recorder.weights.items()))


def jax_function(program):
    def run(weights, x):
        return program.run(JaxOperations(weights), x)
    return run


class TorchOperations(Operations):
    def dense(self, x, name, outputs, bias=True):
        return F.linear(x, self.kernel(name, x.shape[-1], outputs), self.bias(name, outputs, bias))

    def conv(self, x, name, size, outputs, stride=1, padding=None, bias=True):
        kernel, bias = self.kernel(name, size, size, x.shape[-1], outputs), self.bias(name, outputs, bias)
        padding = size // 2 if padding is None else padding
        return places_inside(F.conv2d(channels_inside(x), kernel, bias, stride, padding))

    def depthwise(self, x, name, size):
        features = x.shape[-1]
        kernel, bias = self.kernel(name, size, size, 1, features), self.bias(name, features, True)
        return places_inside(F.conv2d(channels_inside(x), kernel, bias, padding=size // 2, groups=features))

    def layer_norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], *self.norm_weights(x, name), EPSILON)

    def rms_norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weight(f"{name}_scale", (x.shape[-1],), 0.1, 1.0), EPSILON)

    def batch_norm(self, x, name):
        return places_inside(F.batch_norm(channels_inside(x), *self.statistics(x, name), *self.norm_weights(x, name),
                                          eps=EPSILON))

    def attention(self, query, key, value, heads, causal):
        query, key, value = (a.reshape(*a.shape[:2], heads, -1).transpose(1, 2) for a in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2)
        return mixed.reshape(*mixed.shape[:2], -1)

    def max_pool(self, x):
        return places_inside(F.max_pool2d(channels_inside(x), 3, 2, 1))

    def join(self, *arrays, axis=1):
        return torch.cat(arrays, axis)

    def mean_of_places(self, x):
        return x.mean((1, 2))

    gelu, silu, relu = staticmethod(F.gelu), staticmethod(F.silu), staticmethod(F.relu)


def channels_inside(x):
    """[batch, height, width, channels] as [batch, channels, height, width]: a view in the format channels_last."""
    return x.permute(0, 3, 1, 2)


def places_inside(x):
    return x.permute(0, 2, 3, 1)


class TorchProgram(torch.nn.Module):
    def __init__(self, program, weights, dtype):
        super().__init__()
        self.program = program
        self.arrays = torch.nn.ParameterDict({name: torch.nn.Parameter(torch_weight(name, a).to(dtype), False)
                                              for name, a in weights.items()})

    def forward(self, x):
        return self.program.run(TorchOperations(self.arrays), x)


def torch_module(program, weights: dict[str, np.ndarray], dtype: str = "") -> torch.nn.Module:
    """dtype: the program's own unless given."""
    return TorchProgram(program, weights, TORCH_TYPES[dtype or program.dtype]).eval()


def torch_weight(name: str, array: np.ndarray) -> torch.Tensor:
    """One weight in PyTorch's layout."""
    tensor = torch.from_numpy(array)
    if name.endswith("_kernel") and tensor.ndim == 2:
        return tensor.T.contiguous()
    if name.endswith("_kernel"):
        return tensor.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    return tensor
