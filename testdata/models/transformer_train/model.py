"""One training step of a small transformer, for tokens s32[4,65]."""

from common import Model
from decoder import Config
from decoder_training import training_model


def build() -> Model:
    return training_model(Config(layers=4, width=256, heads=4, vocabulary=1000, positions=64), batch=4)
