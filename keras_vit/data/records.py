"""TFRecord files, read in any order: where each record lies is found when they are opened."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vit import _atomic, _checks
from keras_vit._progress import ProgressLine
from keras_vit.data.framework import tf
from keras_vit.data.source import Source, printable

IMAGE_KEY, LABEL_KEY, NAME_KEY = "image/encoded", "image/class/label", "image/filename"
INFO_FILE = "dataset.json"
# Files up to this in all are read into memory.
MEMORY_BYTES = 2**30
_HEADER = struct.Struct("<QI")
_FRAME = 16  # bytes of a record that are not data: length, its checksum, the data's checksum


@dataclass(frozen=True)
class Part:
    """Consecutive records of a file.

    Attributes:
        path: the file.
        skip: records before the part.
        take: records of the part; all that follow if `None`.
    """

    path: str
    skip: int = 0
    take: int | None = None


class RecordSource(Source):
    """Pictures in TFRecord files, as `tf.train.Example` messages.

    Where the files take no more than `MEMORY_BYTES`, they are read into memory. Otherwise only
    the places of the records are, and each is read when it is wanted.

    Args:
        parts: which records.
        class_names: names in the order of the labels. If `None`, all labels are read once, and
            classes are called by their numbers.
        description: one line.
        image_key: name of the feature with a picture's bytes.
        label_key: name of the feature with its label, an integer.
        labels: the labels, if they are known.

    Raises:
        ValueError: if a file is damaged, or has no records of this kind.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        class_names: Iterable[str] | None,
        description: str,
        image_key: str = IMAGE_KEY,
        label_key: str = LABEL_KEY,
        labels: np.ndarray | None = None,
    ):
        self._keys = image_key, label_key
        self._files = [part.path for part in parts]
        places = [_places(part) for part in parts]
        self._file_of = np.repeat(np.arange(len(parts)), [len(p) for p in places])
        self._places = np.concatenate(places) if places else np.zeros((0, 2), "int64")
        if not len(self._places):
            raise ValueError(f"{description} has no records.")
        self._kept: list[tuple[bytes, int]] | None = None
        size = len(self._places)
        first = self._parsed(0, self._message(0))  # says at once if the keys are others
        if int(self._places[:, 1].sum()) <= MEMORY_BYTES:
            self._kept = [self._parsed(i, self._message(i)) for i in range(size)]
            labels = np.asarray([label for _, label in self._kept], "int64")
        elif labels is None and class_names is None:
            bar = ProgressLine(size, "reading labels", "records")
            labels = np.empty(size, "int64")
            for i in range(size):
                labels[i] = first[1] if not i else self._parsed(i, self._message(i))[1]
                bar.update(i + 1, i + 1)
            bar.close()
        if class_names is None:
            count = 1 if labels is None else max(int(labels.max()) + 1, 1)
            class_names = [str(i) for i in range(count)]
        self._check(labels, class_names := tuple(class_names), description)
        super().__init__(size, class_names, labels, description)

    def read(self, index: int) -> tuple[bytes, int]:
        """See `Source.read`."""
        return self._kept[index] if self._kept else self._parsed(index, self._message(index))

    def names(self, indices: Iterable[int]) -> list[str]:
        """Files, and numbers of the records in all."""
        return [f"{printable(self._files[self._file_of[i]])} #{int(i)}" for i in indices]

    def _message(self, index: int) -> bytes:
        start, length = (int(x) for x in self._places[index])
        with open(self._files[self._file_of[index]], "rb") as file:
            file.seek(start)
            return file.read(length)

    def _parsed(self, index: int, message: bytes) -> tuple[bytes, int]:
        image_key, label_key = self._keys
        name = f"{printable(self._files[self._file_of[index]])} #{index}"
        try:
            features = tf.train.Example.FromString(message).features.feature
        except Exception as error:  # protobuf has one of its own, which is not public
            raise OSError(f"{name} is no tf.train.Example ({error})") from error
        if image_key not in features or label_key not in features:
            raise ValueError(
                f"{name} must have the features {image_key!r} and {label_key!r}. "
                f"Received: {sorted(features)[:10]}"
            )
        pictures = features[image_key].bytes_list.value
        labels = features[label_key].int64_list.value
        if len(pictures) != 1 or len(labels) != 1:
            raise ValueError(
                f"{name} must have one picture's bytes as {image_key!r} and one integer as "
                f"{label_key!r}. Received: {len(pictures)} and {len(labels)}"
            )
        return pictures[0], labels[0]

    def _check(self, labels, class_names: tuple[str, ...], description: str) -> None:
        if labels is None:
            return
        wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
        if wrong.size:
            raise ValueError(
                f"Labels of {description} must lie in [0, {len(class_names)}). Received: "
                f"{labels[wrong[0]]} at #{wrong[0]}"
            )


def open_records(pattern: str, class_names: Sequence[str] | None = None) -> RecordSource:
    """Opens TFRecord files with `image/encoded` and `image/class/label`.

    Args:
        pattern: of the files' names, such as "data/train-*".
        class_names: names in the order of the labels; by default those of the `dataset.json`
            beside the files, as `write_tfrecords` leaves it, else numbers.
    """
    files = sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise ValueError(f"No TFRecord file matches {pattern}")
    labels = None
    info = Path(files[0]).parent / INFO_FILE
    if class_names is None and info.is_file():
        try:
            known = json.loads(info.read_text("utf-8"))
            class_names = [str(name) for name in known["class_names"]]
            if known["files"] == [os.path.basename(file) for file in files]:
                labels = np.asarray(known["labels"], "int64")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{printable(str(info))} is damaged ({error!r}).") from error
    parts = [Part(file) for file in files]
    return RecordSource(parts, class_names, f"tfrecord {printable(pattern)}", labels=labels)


def _places(part: Part) -> np.ndarray:
    """Starts and lengths `(n, 2)` of the data of a part's records."""
    name = printable(part.path)
    found = []
    size = os.path.getsize(part.path)
    with open(part.path, "rb") as file:
        position = number = 0
        while position < size:
            if part.take is not None and number == part.skip + part.take:
                break
            file.seek(position)
            head = file.read(_HEADER.size)
            length, check = _HEADER.unpack(head) if len(head) == _HEADER.size else (size, None)
            if check is not None and check != _masked_crc(head[:8]):
                raise ValueError(
                    f"{name} is damaged at byte {position}, or no TFRecord file (compressed ones "
                    "are not read: write them again without compression)."
                )
            if position + _FRAME + length > size:
                raise ValueError(f"{name} ends in the middle of record {number}.")
            if number >= part.skip:
                found.append((position + _HEADER.size, length))
            position += _FRAME + length
            number += 1
    if part.take is not None and len(found) != part.take:
        raise ValueError(
            f"{name} must have {part.skip + part.take} records. Received: {part.skip + len(found)}"
        )
    return np.asarray(found, "int64").reshape(-1, 2)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def _masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write_tfrecords(source: Source, folder: str | os.PathLike, shards: int = 1) -> Path:
    """Writes a source as TFRecord files, and a `dataset.json` with the classes and labels.

    Files' bytes are copied as they are; arrays are written as PNG.

    Args:
        source: the source; arrays have to be uint8 of 1 or 3 channels.
        folder: a new folder, or an empty one. It appears when all is written, or not at all.
        shards: files; each gets consecutive examples.

    Returns:
        The folder. Open it by `open_source("tfrecord:FOLDER/*.tfrecord")`.

    Raises:
        ValueError: on arguments out of range.
        FileExistsError: if the folder has something in it.
    """
    target, shards = Path(folder), _checks.positive_int("shards", shards)
    if shards > source.size:
        raise ValueError(
            f"`shards` must be at most the examples, {source.size}. Received: shards={shards}"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{printable(str(target))} exists; choose a new or empty folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}-", dir=target.parent))
    bar = ProgressLine(source.size, "writing", "pictures")
    try:
        labels, files = [], []
        for shard, indices in enumerate(np.array_split(np.arange(source.size), shards)):
            files.append(f"data-{shard:05d}-of-{shards:05d}.tfrecord")
            with tf.io.TFRecordWriter(os.fspath(partial / files[-1])) as writer:
                for index in indices:
                    message, label = _example(source, int(index))
                    labels.append(label)
                    writer.write(message)
                    bar.update(len(labels), len(labels))
        info = {"class_names": list(source.class_names), "files": files, "labels": labels}
        (partial / INFO_FILE).write_text(json.dumps(info, ensure_ascii=False), "utf-8")
        os.chmod(partial, 0o777 & ~_atomic.umask())
        os.replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        bar.close()
    return target


def _example(source: Source, index: int) -> tuple[bytes, int]:
    data, label = source.read(index)
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8 or data.shape[-1] not in (1, 3):
            raise ValueError(
                "Arrays are written as PNG: they must be uint8 of 1 or 3 channels. "
                f"Received: {data.dtype} {data.shape}"
            )
        data = tf.io.encode_png(data).numpy()
    values = {
        IMAGE_KEY: tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
        LABEL_KEY: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        NAME_KEY: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[source.names([index])[0].encode()])
        ),
    }
    features = tf.train.Features(feature=values)
    return tf.train.Example(features=features).SerializeToString(), label
