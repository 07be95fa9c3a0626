"""Prints the README's table of variants: `python benchmarks/variant_table.py`."""

from keras_vit import count_flops, count_params
from keras_vit.variants import VARIANTS

HEADER = "| variant | function | parameters | multiply-adds at 224 px |\n|---|---|---:|---:|"


def table() -> str:
    """The table as Markdown: parameters with 1000 classes, multiply-adds of one image."""
    rows = [
        f"| {name} | `{variant.function}` | {count_params(name):,} "
        f"| {count_flops(name) / 1e9:.2f} G |"
        for name, variant in VARIANTS.items()
    ]
    return "\n".join([HEADER, *rows])


if __name__ == "__main__":
    print(table())
