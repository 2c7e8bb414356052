"""TorchServe's processes: on a machine and in a container."""
