"""Compares `keras_vit.count_flops` with an independent count: timm's model under PyTorch's counter.

`FlopCounterMode` counts convolutions and matrix products, two operations a multiply-add, in the
forward pass that timm's model really runs. Needs timm and torch:

    pip install keras-vision-transformers timm torch
    python benchmarks/count_flops.py
"""

import sys

from keras_vit.counts import count_flops

TIMM_NAMES = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
}
TOLERANCE = 1e-3


def timm_multiply_adds(name: str) -> int:
    """Counts one image's multiply-adds in timm's model `name` at 224 pixels, 1000 classes."""
    import timm
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    timm.layers.set_fused_attn(False)  # the counter does not see inside every fused kernel
    model = timm.create_model(name, pretrained=False, num_classes=1000).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 224, 224))
    return counter.get_total_flops() // 2


def main() -> int:
    """Prints the table; returns 1 if a difference exceeds the tolerance."""
    try:
        import timm
    except ImportError:
        print("timm is not installed: `pip install timm torch` to compare with its models.")
        return 0
    print(f"timm {timm.__version__}, multiply-adds of one image, 224 pixels, 1000 classes")
    print(f"{'variant':14}{'keras_vit':>18}{'timm':>18}{'difference':>14}")
    worst = 0.0
    for name, timm_name in TIMM_NAMES.items():
        ours, theirs = count_flops(name), timm_multiply_adds(timm_name)
        difference = ours / theirs - 1
        worst = max(worst, abs(difference))
        print(f"{name:14}{ours:18,}{theirs:18,}{difference:14.4%}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
