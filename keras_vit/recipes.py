"""How models are trained: recipes of the papers as plain data, each with its source."""

from __future__ import annotations

from keras_vit.recipe import Recipe

_AUGREG = Recipe(
    source="arXiv 2106.10270; big_vision configs/vit_i1k.py",
    epochs=300,
    batch_size=4096,
    learning_rate=1e-3,
    warmup_steps=10_000,
    weight_decay=0.1,  # big_vision's 1e-4 at a peak of 1e-3
    clip_norm=1.0,
    loss="sigmoid",
    initial_head_bias=-6.9,
    image_size=224,
    evaluation="resize_small",
)
# level -> (mixup, RandAugment).
AUGREG_LEVELS: dict[str, tuple[float, tuple[int, float] | None]] = {
    "none": (0.0, None),
    "light1": (0.0, (2, 0)),
    "light2": (0.2, (2, 10)),
    "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)),
    "strong1": (0.5, (2, 20)),
    "strong2": (0.8, (2, 20)),
}
_PAPER = Recipe(
    name="paper_pretrain",
    source="arXiv 2010.11929, appendix B.1, ImageNet-21k; vit_jax issue 2",
    epochs=90,
    batch_size=4096,
    learning_rate=1e-3,
    schedule="linear",
    final_learning_rate=1e-5,
    warmup_steps=10_000,
    weight_decay=0.03,
    loss="sigmoid",
    initial_head_bias=-10.0,
    image_size=224,
    dropout_rate=0.1,
    representation_size=768,
)

_ALL = (
    Recipe(
        name="finetune",
        source="this project: AdamW with layer-wise decay, as arXiv 2106.08254 fine-tunes",
        epochs=20,
        batch_size=64,
        learning_rate=3e-4,
        warmup_steps=200,
        weight_decay=0.05,
        clip_norm=1.0,
        layer_decay=0.75,
        label_smoothing=0.1,
        crop_area=(0.25, 1.0),
    ),
    Recipe(
        name="scratch",
        source="this project: small data sets without pre-trained weights",
        epochs=100,
        batch_size=256,
        learning_rate=1e-3,
        warmup_steps=500,
        weight_decay=0.1,
        clip_norm=1.0,
        label_smoothing=0.1,
        crop_area=(0.4, 1.0),
        randaugment=(2, 10),
        mixup=0.2,
    ),
    Recipe(
        name="paper_finetune",
        source="arXiv 2010.11929, appendix B.1.1; vit_jax configs/common.py",
        steps=20_000,
        batch_size=512,
        optimizer="sgd",
        learning_rate=0.03,
        warmup_steps=500,
        clip_norm=1.0,
        image_size=384,
        dropout_rate=0.0,
    ),
    _PAPER,
    _PAPER.replace(
        name="paper_pretrain_i1k",
        source="arXiv 2010.11929, appendix B.1, ImageNet-1k",
        epochs=300,
        learning_rate=3e-3,
        schedule="cosine",
        final_learning_rate=0.0,
        weight_decay=0.3,
        clip_norm=1.0,
        loss="softmax",
        initial_head_bias=None,
    ),
    *(
        _AUGREG.replace(name=f"augreg_{level}", mixup=mixup, randaugment=randaugment)
        for level, (mixup, randaugment) in AUGREG_LEVELS.items()
    ),
    Recipe(
        name="s16_90ep",
        source="arXiv 2205.01580; big_vision configs/vit_s16_i1k.py",
        epochs=90,
        batch_size=1024,
        learning_rate=1e-3,
        warmup_steps=10_000,
        weight_decay=0.1,  # big_vision's 1e-4 at a peak of 1e-3
        clip_norm=1.0,
        image_size=224,
        randaugment=(2, 10),
        mixup=0.2,
        evaluation="resize_small",
        representation_size=384,
        pooling="gap",
        position_embedding="sincos2d",
    ),
    Recipe(
        name="deit3_finetune",
        source="arXiv 2204.07118, fine-tuning at 224 and 384 px",
        epochs=20,
        batch_size=512,
        learning_rate=1e-5,
        warmup_steps=12_500,
        weight_decay=0.1,
        label_smoothing=0.1,
        crop_area=(0.08, 1.0),
        randaugment=(2, 9),
        mixup=0.8,
        cutmix=1.0,
        evaluation="resize_small",
    ),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
# The level that AugReg picks by size and data: "augreg" alone stands for most sizes on ImageNet-1k.
ALIASES = {"augreg": "augreg_medium2"}


def get_recipe(name: str | Recipe) -> Recipe:
    """Finds a recipe by name; a `Recipe` is returned as it is.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.
    """
    if isinstance(name, Recipe):
        return name
    recipe = RECIPES.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if recipe is None:
        raise ValueError(f"Unknown recipe. Expected one of {list_recipes()}. Received: {name!r}")
    return recipe


def list_recipes() -> list[str]:
    """Returns the names of all recipes."""
    return [*RECIPES, *ALIASES]
