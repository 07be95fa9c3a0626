"""Looking inside a trained model."""

from keras_vit.inspection.attention import attention_maps, attention_rollout

__all__ = ["attention_maps", "attention_rollout"]
