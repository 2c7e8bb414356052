"""The files of an archive: names that the builder and the worker agree on."""

# The folder of a checkpoint, or of whatever else was given as weights: nothing in it lies on the worker's path.
CHECKPOINT = "checkpoint"
