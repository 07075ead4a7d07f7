"""Training steps of ResNet-50 in the sizes that GPUs are measured with: too large to be kept here. Needs JAX.

    python for_gpu.py f32 128 224 FOLDER         model.hlo and inputs.npz of one step on 128 images of 224x224

In: type (f32; bf16: between the norms), batch, size. Out: two files in FOLDER. The weights are resnet50_train's
(weights.py), whatever the batch. What the step computes no other machine is known to have computed: `make gpu` compares
hloc with XLA on that machine.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from common import hlo_text
from resnet import REDUCED, RESNET50
from resnet_training import training_model

TYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}


def write(type: str, batch: int, size: int, folder: Path, reduced: bool = False) -> None:
    model = training_model(REDUCED if reduced else RESNET50, batch, size, TYPES[type])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.hlo").write_text(hlo_text(model, f"resnet50_train_{type}"))
    arrays = {f"p{k:03}_{label}": array for k, (label, array) in enumerate(model.inputs.items())}
    np.savez(folder / "inputs.npz", **arrays)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), "reduced" in sys.argv[5:])
