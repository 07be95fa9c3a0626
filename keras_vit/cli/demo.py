"""Serves a page to this computer where pictures are dropped: what a model sees in them, and where.

keras-vit demo runs/a
keras-vit demo hf://owner/name --image-size 448 --port 9000
"""

from __future__ import annotations

import argparse

from keras_vit.cli import options as shared

LOCAL = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_looked_at_options(parser)
    parser.add_argument(
        "--host", default=LOCAL, metavar="ADDRESS", help="address to listen on (this computer's)"
    )
    parser.add_argument(
        "--port", type=shared.port, default=8000, metavar="N", help="port (8000); 0: any free one"
    )


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("MODEL", options.model)


def run(options: argparse.Namespace) -> int:
    """Serves until interrupted."""
    from keras_vit.cli.models import load_to_look
    from keras_vit.data import decode_image
    from keras_vit.data.reading import check_reading
    from keras_vit.inspection.page.live import Server

    model, known = load_to_look(options.model, options.image_size)
    height, width, channels = model.flat_config["image_shape"]
    crop = options.crop or known.get("evaluation") or "squash"
    check_reading(channels, crop)

    def read(data: bytes):
        return decode_image(data, (height, width), channels, crop)

    server = Server(
        model,
        read,
        host=options.host,
        port=options.port,
        class_names=known.get("class_names"),
        title=shared.short_name(options.model),
    )
    with server:
        print(f"{server.url} shows what {options.model} sees; Ctrl+C ends it.", flush=True)
        if options.host not in (LOCAL, "localhost", "::1"):
            print("Whoever reaches this address can use it.", flush=True)
        server.serve_forever()
    return 0
