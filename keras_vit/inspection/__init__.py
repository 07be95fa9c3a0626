"""Looking inside a trained model; `plots` draws figures, `page` writes and serves a page."""

from keras_vit.inspection import page, plots
from keras_vit.inspection.attention import attention_maps, attention_rollout, iter_attention_maps
from keras_vit.inspection.distance import attention_distance, mean_attention_distance
from keras_vit.inspection.features import (
    iter_patch_features,
    patch_features,
    principal_components,
    token_norms,
)
from keras_vit.inspection.filters import patch_filters
from keras_vit.inspection.pictures import overlay, upsampled
from keras_vit.inspection.positions import position_similarity
from keras_vit.inspection.predictions import probabilities
from keras_vit.inspection.reading import output_attention
from keras_vit.inspection.relevance import class_relevance, weighted_attention_maps

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "class_relevance",
    "iter_attention_maps",
    "iter_patch_features",
    "mean_attention_distance",
    "output_attention",
    "overlay",
    "page",
    "patch_features",
    "patch_filters",
    "plots",
    "position_similarity",
    "principal_components",
    "probabilities",
    "token_norms",
    "upsampled",
    "weighted_attention_maps",
]
