"""Files of the Hugging Face Hub: an `hf://` address to a local path."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

from keras_vit import _deps
from keras_vit.checkpoints.errors import CheckpointError

_ADDRESS = re.compile(
    r"(?i:hf)://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<inner>.+?))?/?"
)
# keras-hub presets end in ".weights.h5"; transformers' "tf_model.h5" is of no use here.
WEIGHTS = ("*.safetensors", "*.npz", "*.weights.h5")
FILES = (*WEIGHTS, "*.json")

# The library's errors, by class name, and what the user can do. The nearest ancestor counts.
_REMEDIES = {
    "GatedRepoError": "asks for consent: accept its terms at https://huggingface.co/{repo}, then "
    "log in by `hf auth login` or set HF_TOKEN.",
    "RepositoryNotFoundError": "does not exist, or is private: check the name; if it is private, "
    "log in by `hf auth login` or set HF_TOKEN.",
    "RevisionNotFoundError": "has no revision {revision!r}: check it at "
    "https://huggingface.co/{repo}/tree/main.",
    # Of both, the library says only that the network failed or HF_HUB_OFFLINE forbids it.
    "LocalEntryNotFoundError": "{offline}",
    "OfflineModeIsEnabled": "{offline}",
    "HFValidationError": "is no valid name: expected 'hf://owner/name'.",
}
_OFFLINE = (
    "cannot be reached and is not in the cache: where there is a network run `hf download "
    "{repo}{option} --local-dir DIR`, bring DIR here and name it instead."
)


def resolve_hub(address: str) -> Path:
    """Downloads weights and settings of a repository into the Hub's own cache.

    Args:
        address: `"hf://owner/name[@revision][/folder-or-file]"`. A revision with slashes is
            percent-encoded: `"hf://owner/name@refs%2Fpr%2F1"`.

    Returns:
        The directory of the snapshot, or the folder or file in it.

    Raises:
        CheckpointError: if it cannot be had, or there are no weights in it.
        ImportError: if huggingface_hub is not installed.
    """
    match = _ADDRESS.fullmatch(address)
    inner = match["inner"] if match else None
    if not match or (inner and {"", ".", ".."} & set(inner.split("/"))):
        raise CheckpointError(
            f"Expected 'hf://owner/name[@revision][/folder-or-file]'. Received: {address!r}"
        )
    repo = match["repo"]
    revision = urllib.parse.unquote(match["revision"]) if match["revision"] else None
    hub = _deps.optional("huggingface_hub", "weights", f"Downloading {address}")
    try:
        snapshot = Path(hub.snapshot_download(repo_id=repo, revision=revision, **_patterns(inner)))
    except Exception as error:
        raise CheckpointError(f"{address}: {_remedy(error, repo, revision)}") from error
    path = snapshot / (inner or "")
    if path.is_dir() and any(True for pattern in WEIGHTS for _ in path.glob(pattern)):
        return path
    if path.is_file():
        return path
    raise CheckpointError(
        f"{address}: there are no weights of kinds {', '.join(WEIGHTS)}. Check the files at "
        f"https://huggingface.co/{repo}/tree/{revision or 'main'}."
    )


def _patterns(inner: str | None) -> dict[str, list[str]]:
    """What to download. In the Hub's patterns "*" stands for slashes, too."""
    if inner is None:
        return {"allow_patterns": list(FILES), "ignore_patterns": ["*/*"]}
    folder, slash, name = inner.rpartition("/")
    if any(Path(name).match(pattern) for pattern in FILES):
        beside = f"{folder}{slash}"
        return {
            "allow_patterns": [inner, f"{beside}*.json"],
            "ignore_patterns": [f"{beside}*/*"],
        }
    return {
        "allow_patterns": [f"{inner}/{pattern}" for pattern in FILES],
        "ignore_patterns": [f"{inner}/*/*"],
    }


def _remedy(error: Exception, repo: str, revision: str | None) -> str:
    option = f" --revision {revision}" if revision else ""
    offline = _OFFLINE.format(repo=repo, option=option)
    for ancestor in type(error).__mro__:
        if ancestor.__name__ in _REMEDIES:
            remedy = _REMEDIES[ancestor.__name__]
            return f"{repo} {remedy.format(repo=repo, revision=revision, offline=offline)}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{repo} could not be downloaded ({lines[0]})."
