"""Archives: what ./archive.sh builds from a list of models."""
