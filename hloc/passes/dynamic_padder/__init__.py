"""Bounded dynamic dimensions become static: an array lies in memory at its bounds, its sizes are values beside it."""
from hloc.passes.dynamic_padder.walk import dynamic_padder, padded_shape

__all__ = ["dynamic_padder", "padded_shape"]
