"""What goes inside every archive: the lifecycle of a batch and one module per task."""
