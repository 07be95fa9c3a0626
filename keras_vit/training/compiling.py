"""From a recipe to a compiled model: what is trained, by which optimizer, on which loss."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.engines.engine import current
from keras_vit.models.base import FlatModel
from keras_vit.optimizers import SGD, AdamW
from keras_vit.recipe import Recipe
from keras_vit.training.groups import layer_decay_multipliers
from keras_vit.training.lora import enable_lora
from keras_vit.training.losses import Crossentropy, accuracy
from keras_vit.training.parts import train_last_blocks
from keras_vit.training.schedules import WarmupSchedule

# A warm-up may take this part of a run; recipes of long runs have long ones.
_MOST_WARMUP = 5


def schedule_of(recipe: Recipe, total_steps: int) -> WarmupSchedule:
    """The recipe's learning rates over `total_steps` updates.

    A warm-up that is longer than a fifth of the run is cut to that, and a warning says so.
    """
    warmup = min(recipe.warmup_steps, total_steps // _MOST_WARMUP)
    if warmup < recipe.warmup_steps:
        warnings.warn(
            f"The warm-up of {recipe.warmup_steps} steps is cut to {warmup}, a fifth of the run's "
            f"{total_steps}. Set warmup_steps to choose.",
            stacklevel=2,
        )
    return WarmupSchedule(
        recipe.learning_rate,
        total_steps,
        warmup_steps=warmup,
        course=recipe.schedule,
        final_learning_rate=recipe.final_learning_rate,
        accumulation_steps=recipe.accumulation_steps,
    )


def optimizer_of(recipe: Recipe, model: keras.Model, schedule):
    """The recipe's optimizer for the model's trainable weights.

    Args:
        recipe: the recipe.
        model: the model, with the parts frozen that are not trained.
        schedule: learning rate, or learning rates.

    Returns:
        `AdamW` or `SGD` of this package.

    Raises:
        ValueError: if the recipe has layer-wise decay and the model no blocks.
    """
    shared = {
        "weight_decay": recipe.weight_decay,
        "clip_norm": recipe.clip_norm,
        "accumulation_steps": recipe.accumulation_steps,
        "ema_decay": recipe.ema_decay,
    }
    if recipe.layer_decay != 1.0:
        shared["multipliers"] = layer_decay_multipliers(model, recipe.layer_decay)
    if recipe.optimizer == "sgd":
        return SGD(schedule, momentum=recipe.momentum, **shared)
    return AdamW(schedule, beta_1=recipe.beta_1, beta_2=recipe.beta_2, **shared)


def prepare(model: FlatModel, recipe: Recipe, total_steps: int) -> WarmupSchedule:
    """Freezes what is not trained, sets the head's bias, and compiles, as the recipe says.

    Args:
        model: `VisionTransformer` or `BiTResNet`, giving logits.
        recipe: the recipe.
        total_steps: updates in all.

    Returns:
        The learning rates.

    Raises:
        ValueError: if the model does not fit the recipe.
    """
    check_model(model, recipe)
    config = model.flat_config
    if config["num_classes"] is None or config["classifier_activation"] is not None:
        raise ValueError(
            "Training needs a model with a head that gives logits: num_classes=N, "
            f"classifier_activation=None. Received: num_classes={config['num_classes']}, "
            f"classifier_activation={config['classifier_activation']!r}"
        )
    if recipe.initial_head_bias is not None:
        for layer in model.layers:
            if layer.name in ("head", "head_dist") and layer.bias is not None:
                layer.bias.assign(np.full(layer.bias.shape, recipe.initial_head_bias, "float32"))
    if recipe.lora_rank is not None:
        enable_lora(model, recipe.lora_rank)
    elif recipe.train_blocks is not None:
        train_last_blocks(model, recipe.train_blocks)
    schedule = schedule_of(recipe, total_steps)
    model.compile(
        optimizer_of(recipe, model, schedule),
        loss=Crossentropy(recipe.loss, recipe.label_smoothing),
        weighted_metrics=[accuracy],
    )
    return schedule


def check_model(model: FlatModel, recipe: Recipe) -> None:
    """Raises a ValueError unless the model was built as the recipe says."""
    config: dict[str, Any] = {**model.flat_config, "dtype": model.dtype_policy.name}
    wrong = {
        name: value for name, value in recipe.model_arguments().items() if config.get(name) != value
    }
    if recipe.image_size is not None:
        shape = (*_checks.int_pair("image_size", recipe.image_size), config["image_shape"][-1])
        if tuple(config["image_shape"]) != shape:
            wrong["image_shape"] = shape
    if wrong:
        raise ValueError(
            f"The recipe {recipe.name} is for a model with "
            f"{', '.join(f'{name}={value!r}' for name, value in wrong.items())}: build the model "
            "so, or set these fields of the recipe (image_size for image_shape) to None by "
            "recipe.replace. Received: "
            f"{', '.join(f'{name}={config.get(name)!r}' for name in wrong)}"
        )


def build_state(model: keras.Model, labels: np.ndarray, num_classes: int) -> None:
    """Makes all variables of optimizer and metrics, which Keras else makes in the first step.

    Args:
        model: compiled.
        labels: a batch of labels as they will be fitted.
        num_classes: of the model.
    """
    model.optimizer.build(model.trainable_variables)
    outputs = np.zeros((len(labels), num_classes), "float32")
    current().build_metrics(model, labels, outputs)
    model.reset_metrics()
