"""Trains a small network on handwritten digits in seconds, and writes mnist.onnx and mnist.pt2 beside itself.

    python examples/mnist/train.py

The digits are scikit-learn's, 1797 of 8 x 8, scaled to the 28 x 28 of MNIST; see README.md.
"""

import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

FOLDER = Path(__file__).resolve().parent
SEED = 0
EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 32, 1e-2
# Of the digits' pixels, and of the images that the network takes.
WHITE, SIDE = 16, 28


class Digits(nn.Module):
    """image (B, 1, 28, 28) from 0 to 1, any B -> probabilities (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU()),
            *(nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
        )

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        # Clients use these names of inputs and outputs.
        return {"probabilities": self.layers(image).softmax(1)}


def digits() -> list[torch.Tensor]:
    """Read images and labels to train with, and others to test with: two of each, images (N, 1, 28, 28)."""
    data = load_digits()
    images = torch.from_numpy(data.images.astype(np.float32) / WHITE)[:, None]
    images = nn.functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear")
    train, test, train_labels, test_labels = train_test_split(
        images.numpy(), data.target, test_size=0.2, random_state=SEED, stratify=data.target
    )
    return [torch.from_numpy(each) for each in (train, train_labels, test, test_labels)]


def train(network: Digits, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Fit the network."""
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(images)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network.layers(images[some]), labels[some]).backward()
            optimizer.step()


def export(network: Digits, folder: Path) -> None:
    """Write the network in both forms, each for any number of images."""
    example = (torch.zeros(2, 1, SIDE, SIDE),)
    rows = {"image": {0: torch.export.Dim.DYNAMIC}}
    torch.export.save(torch.export.export(network, example, dynamic_shapes=rows), folder / "mnist.pt2")
    torch.onnx.export(
        network,
        example,
        folder / "mnist.onnx",
        dynamo=True,
        dynamic_shapes=rows,
        input_names=["image"],
        output_names=["probabilities"],
        external_data=False,
        verbose=False,
    )


def main() -> None:
    """Train, print the accuracy on unseen digits, and export."""
    torch.manual_seed(SEED)
    # A network as small as this one loses more by waiting for a second thread than it gains.
    torch.set_num_threads(1)
    network = Digits()
    images, labels, test_images, test_labels = digits()
    train(network, images, labels)
    network.eval()
    with torch.inference_mode():
        accuracy = (network(test_images)["probabilities"].argmax(1) == test_labels).float().mean().item()
    print(f"test: {len(test_labels)} digits, {accuracy:.1%} right")
    # The exporters warn of libraries that are not used here.
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(network, FOLDER)
    print("written: mnist.onnx, mnist.pt2")


if __name__ == "__main__":
    main()
