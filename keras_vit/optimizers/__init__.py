"""AdamW and SGD with what fine-tuning needs, for all backends."""

from keras_vit.optimizers.decoupled import SGD, AdamW, inner_optimizer

__all__ = ["SGD", "AdamW", "inner_optimizer"]
