"""The command line `keras-vit`: one module a command, each with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from keras_vit._deps import use_backend
from keras_vit._reading import reason

# The module in this package of each command -> its line in the help.
COMMANDS = {
    "train": "train a model on pictures, or go on with a run",
    "evaluate": "measure a model on labelled pictures",
    "predict": "name what pictures show",
    "inspect": "write a page to look into a model: attention, positions, features",
    "demo": "serve that page to this computer, for pictures that are dropped on it",
    "convert": "write a checkpoint in another project's format",
    "export": "write a model for TF Serving, TFLite, ONNX or OpenVINO, and verify it",
    "describe": "say what a checkpoint holds, and whether it would load",
    "benchmark": "measure how fast things are here",
    "plan": "say what training will need: memory, arithmetic, time",
}

_PACKAGE = __name__.partition(".")[0]
INTERRUPTED = 130  # as shells have it: 128 and the number of the signal
BROKEN_PIPE = 141

# Messages speak of Python's arguments; here they have other names.
_OPTIONS = (
    (r"\bpass num_heads=\.\.\.", "pass --num-heads N"),
    (
        r"\bpass the image_shape=\(height, width, channels\) that",
        "pass by --image-size HEIGHT WIDTH the size that",
    ),
    (
        r"\bPass pixel_range=\.\.\., or include_rescaling=False",
        "Pass --set pixel_range=..., or --set include_rescaling=False",
    ),
    (r"\btake (activation)='(\w+)'", r"take --set \1=\2"),
    (r'`on_bad="skip"`', "--on-bad skip"),
    (r'`crop="none"`', "crop=none"),
    (r"`skip`", "--skip"),
    (r"\btake precision=", "take --precision "),
    (r"\bdistribution='(\w+)'", r"--distribution \1"),
    (r"`distribution`", "--distribution"),
    (r"\bmesh=(\d+x\d+)", r"--mesh \1"),
    (r"`mesh`", "--mesh"),
    (r"`resampling`", "--resampling"),
    (r"`(port|host)`", r"--\1"),
    (r"\bpass overwrite=True", "pass --overwrite"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: what stands behind the program's name; `None`: of this process.

    Returns:
        Exit status: 0, or 1 after a message; 130 if interrupted. Wrong usage exits with 2.
    """
    with warnings.catch_warnings():
        _show_notes()
        try:
            arguments = _parser().parse_args(argv)
            module = import_module(f"{__package__}.{arguments.command}")
            # Commands with a `check` find bad arguments before Keras is imported.
            getattr(module, "check", lambda arguments: None)(arguments)
            use_backend(getattr(arguments, "backend", None))
            status = module.run(arguments)
            sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            # Whoever read has seen enough. What is still in the buffer must not fail at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        # CheckpointError is a ValueError, NonFiniteLossError an ArithmeticError.
        except (ValueError, ImportError, OSError, ArithmeticError) as error:
            return _failed(str(error))
        except Exception as error:
            if type(error).__name__ == "PeerLostError":
                _failed(str(error))
                # The backends would wait for the lost process when this one ends in order.
                os._exit(1)
            words = reason(error)
            if words is None:
                raise
            return _failed(words)


def _failed(message: str) -> int:
    print(f"keras-vit: error: {in_options(message)}", file=sys.stderr)
    return 1


def in_options(message: str) -> str:
    """A message with the names of options for those of Python's arguments."""
    for pattern, option in _OPTIONS:
        message = re.sub(pattern, option, message)
    return message


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-vit", description="Vision Transformers for Keras 3."
    )
    parser.add_argument("--version", action="version", version=import_module(_PACKAGE).__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        module = import_module(f"{__package__}.{name}")
        command = commands.add_parser(
            name,
            help=line,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


def _show_notes() -> None:
    """Makes this package's warnings plain lines, each time; others stay as they are."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
    usual = warnings.showwarning

    def show(message, category, filename, lineno, file=None, line=None):
        if os.path.abspath(filename).startswith(folder):
            print(f"note: {in_options(str(message))}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.filterwarnings("always", category=UserWarning, module=rf"{_PACKAGE}(\.|$)")
    warnings.showwarning = show
