"""Other projects' weights: read, resampled and written. NumPy only, no Keras."""

from keras_vit.checkpoints.errors import CheckpointError

__all__ = ["CheckpointError"]
