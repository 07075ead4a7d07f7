"""Convolutions of few channels: what a window's row reads, or what adjacent taps read, is one line of "channels".

In: a convolution's constants (conv.cuh) whose positions lie one after the other in memory, without padding across. Out:
the constants of the same convolution with fewer taps, whose lines are longer. Neighbouring lines overlap in memory.

    7x7 windows, 2 apart, of 4 channels  =>  7x1 windows of 28 channels, lines 8 elements apart
    the gradient of that filter          =>  7x1 taps of 28 images, lines 8 elements apart

A copy of 16 bytes or of a box brings then what otherwise takes one for each tap. ADJACENT adjacent taps are part of an
"image" of a gradient; hloc_conv_row of conv.cuh finds their rows.
"""
from __future__ import annotations

from hloc.targets.cuda.tiles.tensor_maps import LINE


def with_long_lines(c: dict[str, int], width: int) -> dict[str, int]:
    """The constants with longer lines; the same where channels fill lines, or are not adjacent. width: bytes of an
    element."""
    if c["GROUPS"] * c["BATCH_GROUPS"] > 1 or c["BASE2"] > 1 or c["LOW2"] or c["REVERSAL2"]:
        return c
    if (c["OUT2"] - 1) * c["STRIDE2"] + (c["WINDOW2"] - 1) * c["DILATION2"] >= c["SIZE2"]:
        return c                                                # windows reach into the padding behind
    if c["X_C"] == 1 and not c["IMAGES_FIRST"]:
        return _rows_of_windows(c, width)
    return _adjacent_taps(c, width) if c["IMAGES_FIRST"] else c


def _rows_of_windows(c: dict[str, int], width: int) -> dict[str, int]:
    """The elements of a window's row become channels, of the input and of the kernel."""
    channels, taps = c["CHANNELS"], c["WINDOW2"]
    inner = c["W_2"] if channels == 1 else c["W_I"]
    if taps == 1 or c["DILATION2"] > 1 or c["X_2"] != channels or c["W_2"] != channels * inner \
            or channels * width >= LINE:
        return c
    return {**c, "CHANNELS": channels * taps, "W_I": inner, "WINDOW2": 1, "W_2": 0,
            "SIZE2": c["OUT2"], "X_2": c["X_2"] * c["STRIDE2"], "STRIDE2": 1}


def _adjacent_taps(c: dict[str, int], width: int) -> dict[str, int]:
    """What adjacent output positions read becomes images."""
    images, taps = c["IMAGES"], c["OUT2"]
    if taps == 1 or c["STRIDE2"] > 1 or c["X_2"] != images or images * width >= LINE \
            or (c["WHOLE2"], c["STEP2"]) != (taps, 1):
        return c
    return {**c, "IMAGES": images * taps, "ADJACENT": taps, "POINTS": c["POINTS"] // taps, "OUT2": 1, "WHOLE2": 1,
            "SIZE2": c["WINDOW2"], "X_2": c["X_2"] * c["DILATION2"], "DILATION2": 1}
