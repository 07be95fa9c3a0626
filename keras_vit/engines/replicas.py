"""How many replicas of a tf.distribute strategy take a step together."""

from __future__ import annotations

import keras


def replicas_in_step() -> int:
    """The replicas whose losses and gradients are summed: 1 but under a tf.distribute strategy."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync
