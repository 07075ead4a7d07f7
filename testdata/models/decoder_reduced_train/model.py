"""One training step of a transformer of one layer, for tokens s32[2,17]: the kinds of kernels of transformer_train,
small enough for the GPU emulation."""

from common import Model
from decoder import Config
from decoder_training import training_model


def build() -> Model:
    return training_model(Config(layers=1, width=32, heads=2, vocabulary=50, positions=16), batch=2, size="small")
