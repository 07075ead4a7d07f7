"""One training step of a ResNet with one block in each of two stages, for images u8[2,32,32,3]: the kinds of kernels of
resnet50_train, small enough for the GPU emulation."""

from common import Model
from resnet import REDUCED
from resnet_training import training_model


def build() -> Model:
    return training_model(REDUCED, batch=2, size=32, kind="small")
