"""A decoder of one layer reads eight tokens and generates four: the kinds of kernels of gpt2_prefill and gpt2_generate,
small enough for the GPU emulation."""

from common import Model
from decoder import Config
from generation import generation_model


def build() -> Model:
    return generation_model(Config(layers=1, width=32, heads=2, vocabulary=50, positions=16), 8, 4, seed=3)
