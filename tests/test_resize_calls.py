"""Resizing of images as TPUs' modules call it, on the evaluator and in compiled C, against TensorFlow's definition taken
pixel by pixel."""
from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from library_check import check, draw

import hloc
from hloc.errors import UnsupportedError

WAYS = [(False, False), (True, False), (False, True)]          # corners aligned, pixels at their centers


def shares(small: int, large: int, aligned: bool, centered: bool, nearest: bool) -> np.ndarray:
    """[large, small]: how much each place takes of each element."""
    scale = (small - 1) / (large - 1) if aligned and large > 1 else small / large
    made = np.zeros((large, small))
    for place in range(large):
        at = (place + 0.5) * scale if centered else place * scale
        if nearest:
            made[place, min(max(math.floor(at + 0.5 if aligned else at), 0), small - 1)] = 1
            continue
        at = at - 0.5 if centered else at
        low = math.floor(at)
        made[place, max(low, 0)] += 1 - (at - low)
        made[place, min(max(low + 1, 0), small - 1)] += at - low
    return made


@pytest.mark.parametrize("way, kind, sizes", list(itertools.product(
    WAYS, ["Nearest", "Bilinear"], [(3, 2, 7, 5), (8, 5, 4, 2)])))
def test_resizing_and_its_gradient(way, kind, sizes):
    rows, columns, high, wide = sizes
    parts = [shares(*pair, *way, kind == "Nearest") for pair in ((rows, high), (columns, wide))]
    more = f', backend_config="\\"{way[0]:d}{way[1]:d}\\""'
    x, gradient = draw(2, rows, columns, 3), draw(2, high, wide, 3)
    forward = np.einsum("hr,wc,nrcf->nhwf", *parts, x).astype(np.float32)
    check(f"Resize{kind}", [x], [forward], more=more, workspace=False)
    backward = np.einsum("hr,wc,nhwf->nrcf", *parts, gradient).astype(np.float32)
    check(f"Resize{kind}Grad", [gradient], [backward], more=more, workspace=False)


def test_a_row_of_four_from_two():
    """As TensorFlow gives them."""
    x = np.array([1, 2], np.float32).reshape(1, 1, 2, 1)
    for way, want in (("00", [1, 1.5, 2, 2]), ("10", [1, 4 / 3, 5 / 3, 2]), ("01", [1, 1.25, 1.75, 2])):
        check("ResizeBilinear", [x], [np.array(want, np.float32).reshape(1, 1, 4, 1)], workspace=False,
              more=f', backend_config="\\"{way}\\""')


@pytest.mark.parametrize("shape, config", [("f32[1,2,4,1]", ""), ("f32[1,2,4,1]", "2"), ("f32[1,2,4,2]", "00"),
                                           ("f32[1,2,4]", "00")])
def test_what_is_no_resizing_is_refused(shape, config):
    text = f"""ENTRY e {{ x = f32[1,2,2,1] parameter(0)
        ROOT r = {shape} custom-call(x), custom_call_target="ResizeNearest", backend_config="{config}" }}"""
    for target in ("cpu", "reference"):
        with pytest.raises(UnsupportedError, match="ResizeNearest"):
            hloc.compile(text, target)(np.zeros((1, 2, 2, 1), np.float32))
