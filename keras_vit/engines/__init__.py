"""Several devices, on the engine that each backend already has.

`keras_vit.training.distribution` is the public door; this package lies lower, since models and
evaluation ask it how a batch is divided. Nothing is imported here: `layouts` is arithmetic alone.
"""
