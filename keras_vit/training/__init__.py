"""Training: recipes, optimizers, and runs that survive being killed."""

from keras_vit.optimizers import SGD, AdamW
from keras_vit.recipe import Recipe
from keras_vit.recipes import get_recipe, list_recipes
from keras_vit.training import distribution
from keras_vit.training.averages import EvaluateAverages, swap_averages
from keras_vit.training.callbacks import NonFiniteLossError, StopOnNonFinite
from keras_vit.training.compiling import optimizer_of, prepare, schedule_of
from keras_vit.training.distillation import Distiller
from keras_vit.training.feeds import Feed, SourceFeed
from keras_vit.training.groups import layer_decay_multipliers
from keras_vit.training.lora import enable_lora, merge_lora
from keras_vit.training.losses import Crossentropy, accuracy
from keras_vit.training.parts import train_last_blocks
from keras_vit.training.randomness import set_seed
from keras_vit.training.result import Result
from keras_vit.training.run import train
from keras_vit.training.schedules import WarmupSchedule

__all__ = [
    "SGD",
    "AdamW",
    "Crossentropy",
    "Distiller",
    "EvaluateAverages",
    "Feed",
    "NonFiniteLossError",
    "Recipe",
    "Result",
    "SourceFeed",
    "StopOnNonFinite",
    "WarmupSchedule",
    "accuracy",
    "distribution",
    "enable_lora",
    "get_recipe",
    "layer_decay_multipliers",
    "list_recipes",
    "merge_lora",
    "optimizer_of",
    "prepare",
    "schedule_of",
    "set_seed",
    "swap_averages",
    "train",
    "train_last_blocks",
]
