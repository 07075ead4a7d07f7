"""Read handwritten digits with a compiled model: the main job of hloc, on a real model, in one page.

    python examples/digits.py

The model is a small convolutional network (testdata/models/digits), 360 scans of digits that it has never seen.
"""
import sys
import time
from pathlib import Path

import numpy as np

import hloc

FOLDER = Path(__file__).parent.parent / "testdata" / "models" / "digits"
SHADES = " .:-=+*#%@"
SHOWN = 8


def picture(image: np.ndarray) -> list[str]:
    """One 8x8 scan as eight lines of text; values from 0 to the largest become lighter and darker characters."""
    levels = (image / image.max() * (len(SHADES) - 1)).astype(int)
    return ["".join(SHADES[v] * 2 for v in row) for row in levels]


def main() -> int:
    images = np.load(FOLDER / "images.npy", allow_pickle=False)
    labels = np.load(FOLDER / "labels.npy", allow_pickle=False)
    start = time.perf_counter()
    classify = hloc.compile(FOLDER / "model.hlo", target="auto")
    compiled = time.perf_counter()
    probabilities, digits = classify(images)
    done = time.perf_counter()

    for lines in zip(*(picture(image[..., 0]) for image in images[:SHOWN])):
        print("  ".join(lines))
    print("  ".join(f"{f'{d}  ({p.max():.0%} sure)':^16}" for d, p in zip(digits[:SHOWN], probabilities)))
    right = np.mean(digits == labels)
    print(f"\n{len(images)} digits on {classify.target}: {right:.1%} right "
          f"(compiled in {compiled - start:.2f} s, run in {(done - compiled) * 1e3:.2f} ms)")
    return 0 if right >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
