"""Clients shaped as PyTriton's: a program that has those of pytriton.client moves here by its import line.

    from torchserve_client.pytriton import ChunkingClient, FuturesModelClient, ModelClient
    from torchserve_client.pytriton.exceptions import PyTritonClientTimeoutError

    arrays -> arguments: checked -> ModelClient: once the model is ready, and its config known -> Client.infer -> arrays
              ChunkingClient: cut by the model's max_batch_size -> FuturesModelClient: a future each -> ModelClient

They are asked over HTTP, of a gateway or of TorchServe itself.
"""

from torchserve_client.pytriton.chunking_client import ChunkingClient
from torchserve_client.pytriton.futures_client import FuturesModelClient
from torchserve_client.pytriton.model_client import ModelClient
from torchserve_client.pytriton.model_config import TensorSpec, TritonModelConfig

__all__ = ["ChunkingClient", "FuturesModelClient", "ModelClient", "TensorSpec", "TritonModelConfig"]
