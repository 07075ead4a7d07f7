"""One training step of ResNet-50, for images u8[4,128,128,3]."""

from common import Model
from resnet import RESNET50
from resnet_training import training_model


def build() -> Model:
    return training_model(RESNET50, batch=4, size=128)
