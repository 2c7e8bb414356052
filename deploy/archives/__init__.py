"""Archives: what `torchserve-batching archive` builds from a list of models."""
