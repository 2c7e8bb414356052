"""Settings, models and engines of the task on images and texts, whose vectors share one space."""
