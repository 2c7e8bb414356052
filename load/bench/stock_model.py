"""Holds ResNet-152 as the stock image_classifier wants it: the one class of a file inside its archive."""

from torchvision.models.resnet import Bottleneck, ResNet


class ImageClassifier(ResNet):  # type: ignore[misc]
    """torchvision's resnet152, which is a function; the handler needs a class without arguments."""

    def __init__(self) -> None:
        # The numbers of blocks in each stage are those of He et al., Deep Residual Learning, table 1.
        super().__init__(Bottleneck, [3, 8, 36, 3])
