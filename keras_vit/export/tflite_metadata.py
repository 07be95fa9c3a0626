"""TFLite Model Metadata: what Android's and iOS' tools read of a file's images and labels.

A flatbuffer of its own inside the file, and the labels in a zip archive at the file's end.

Reference:
    https://www.tensorflow.org/lite/convert/metadata; the schema is metadata_schema.fbs, version
    1.1.0, of github.com/tensorflow/tflite-support.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import tflite_graph

ENTRY = b"TFLITE_METADATA"
LABELS = "labels.txt"
_IDENTIFIER = b"M001"
_PARSER = "1.0.0"  # the oldest version that knows all fields used here
# Fields of the schema's tables, in their order, as far as anything is written or read here; a
# union is a number and a table, and takes two places.
TABLES: dict[str, dict[str, str]] = {
    "ModelMetadata": {
        "name": "string",
        "description": "string",
        "version": "string",
        "subgraph_metadata": "[SubGraphMetadata]",
        "author": "string",
        "license": "string",
        "associated_files": "[AssociatedFile]",
        "min_parser_version": "string",
    },
    "SubGraphMetadata": {
        "name": "string",
        "description": "string",
        "input_tensor_metadata": "[TensorMetadata]",
        "output_tensor_metadata": "[TensorMetadata]",
        "associated_files": "[AssociatedFile]",
    },
    "TensorMetadata": {
        "name": "string",
        "description": "string",
        "dimension_names": "[string]",
        "content": "Content",
        "process_units": "[ProcessUnit]",
        "stats": "Stats",
        "associated_files": "[AssociatedFile]",
    },
    "AssociatedFile": {
        "name": "string",
        "description": "string",
        "type": "enum AssociatedFileType",
        "locale": "string",
    },
    "Content": {"content_properties": "union ContentProperties"},
    "FeatureProperties": {},
    "ImageProperties": {"color_space": "enum ColorSpaceType", "default_size": "ImageSize"},
    "ImageSize": {"width": "uint", "height": "uint"},
    "ProcessUnit": {"options": "union ProcessUnitOptions"},
    "NormalizationOptions": {"mean": "[float]", "std": "[float]"},
    "Stats": {"max": "[float]", "min": "[float]"},
}
# Values by their numbers.
ENUMS = {
    "AssociatedFileType": ("UNKNOWN", "DESCRIPTIONS", "TENSOR_AXIS_LABELS"),
    "ColorSpaceType": ("UNKNOWN", "RGB", "GRAYSCALE"),
    "ContentProperties": ("NONE", "FeatureProperties", "ImageProperties"),
    "ProcessUnitOptions": ("NONE", "NormalizationOptions"),
}
ABOUT = ("name", "description", "version", "author", "license")


def describe(
    about: Mapping[str, str],
    image_shape: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    value_range: tuple[float, float],
    output: str,
    labels: Sequence[str],
) -> dict[str, Any]:
    """The metadata of an image classifier.

    Args:
        about: values for some of `ABOUT`.
        image_shape: (height, width, channels).
        mean: what an app subtracts from pixels 0..255; one value, or one a channel.
        std: what it then divides by.
        value_range: least and greatest value of the input.
        output: name of the output.
        labels: names of the classes; none for an output that has no classes.

    Returns:
        A `ModelMetadata`, as a dict of the fields of `TABLES`.
    """
    height, width, channels = image_shape
    color = {1: "GRAYSCALE", 3: "RGB"}.get(channels, "UNKNOWN")
    low, high = value_range
    images = {
        "name": "images",
        "description": (
            f"Images of {height} x {width} pixels, {channels} channels, values {low:g} to {high:g}."
        ),
        "content": {
            "content_properties": (
                "ImageProperties",
                {"color_space": color, "default_size": {"width": width, "height": height}},
            )
        },
        "process_units": [
            {"options": ("NormalizationOptions", {"mean": list(mean), "std": list(std)})}
        ],
        "stats": {"max": [high], "min": [low]},
    }
    scores: dict[str, Any] = {
        "name": output,
        "description": f"{output.capitalize()} of {len(labels)} classes.",
        "content": {"content_properties": ("FeatureProperties", {})},
    }
    if labels:
        scores["associated_files"] = [
            {
                "name": LABELS,
                "description": "Names of the classes, a line each.",
                "type": "TENSOR_AXIS_LABELS",
            }
        ]
    else:
        scores["description"] = "What the model makes of the images."
    return {
        **{name: about[name] for name in ABOUT if name in about},
        "subgraph_metadata": [
            {"input_tensor_metadata": [images], "output_tensor_metadata": [scores]}
        ],
        "min_parser_version": _PARSER,
    }


def with_metadata(content: bytes, metadata: Mapping[str, Any], labels: Sequence[str]) -> bytes:
    """A .tflite file's bytes with metadata, and labels in an archive at its end.

    Args:
        content: the file without them.
        metadata: what `describe` returned.
        labels: names of the classes.
    """
    model = tflite_graph.parse(content)
    schema = tflite_graph.schema()
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(pack(metadata), np.uint8)
    model.buffers.append(buffer)
    entry.name, entry.buffer = ENTRY, len(model.buffers) - 1
    kept = [each for each in model.metadata or [] if each.name != ENTRY]
    model.metadata = [*kept, entry]
    written = io.BytesIO(tflite_graph.serialise(model))
    if labels:
        written.seek(0, io.SEEK_END)
        with zipfile.ZipFile(written, "a") as archive:
            # Without a date of today the same model gives the same file.
            archive.writestr(zipfile.ZipInfo(LABELS), "".join(f"{name}\n" for name in labels))
    return written.getvalue()


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Reads the metadata of a .tflite file, whoever wrote it.

    Args:
        path: the file.

    Returns:
        The fields of `TABLES` that it has, unions as pairs of a name and the fields, and
        `labels`, the lines of the first output's label file, `[]` where there is none.

    Raises:
        ValueError: if it is no .tflite file, or has no metadata.
    """
    content = Path(path).read_bytes()
    if content[4:8] != b"TFL3":
        raise ValueError(f"{path} is no .tflite file.")
    model = tflite_graph.parse(content)
    found = next((each for each in model.metadata or [] if each.name == ENTRY), None)
    if found is None:
        raise ValueError(f"{path} has no metadata: keras_vit.export.to_tflite writes some.")
    metadata = unpack(bytes(memoryview(model.buffers[found.buffer].data)))
    return {**metadata, "labels": _labels(content, metadata)}


def _labels(content: bytes, metadata: Mapping[str, Any]) -> list[str]:
    graphs = metadata.get("subgraph_metadata") or [{}]
    outputs = graphs[0].get("output_tensor_metadata") or [{}]
    for file in outputs[0].get("associated_files", ()):
        if file.get("type") == "TENSOR_AXIS_LABELS":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return archive.read(file["name"]).decode("utf-8").rstrip("\n").split("\n")
    return []


# The flatbuffer ----------------------------------------------------------------------------


def pack(metadata: Mapping[str, Any]) -> bytes:
    """The flatbuffer of a `ModelMetadata`."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(_pack_table(builder, "ModelMetadata", metadata), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


def _pack_table(builder: Any, table: str, fields: Mapping[str, Any]) -> int:
    # What a table points to is written before the table itself.
    slots = []
    for slot, name, kind in _slots(table):
        value = fields.get(name)
        if value is None:
            continue
        if kind.startswith("union "):
            member, content = value
            number = ENUMS[kind.removeprefix("union ")].index(member)
            slots.append((slot, "PrependUint8Slot", number))
            slots.append((slot + 1, *_offset(_pack_table(builder, member, content))))
        elif kind.startswith("enum "):
            number = ENUMS[kind.removeprefix("enum ")].index(value)
            slots.append((slot, "PrependInt8Slot", number))
        elif kind == "uint":
            slots.append((slot, "PrependUint32Slot", value))
        else:
            slots.append((slot, *_offset(_pack_value(builder, kind, value))))
    builder.StartObject(max((slot for slot, *_ in _slots(table)), default=-1) + 2)
    for slot, method, value in slots:
        getattr(builder, method)(slot, value, 0)
    return builder.EndObject()


def _offset(value: int) -> tuple[str, int]:
    return "PrependUOffsetTRelativeSlot", value


def _pack_value(builder: Any, kind: str, value: Any) -> int:
    if kind == "string":
        return builder.CreateString(value)
    if kind == "[float]":
        return builder.CreateNumpyVector(np.asarray(value, "float32"))
    if not kind.startswith("["):
        return _pack_table(builder, kind, value)
    parts = [_pack_value(builder, kind[1:-1], part) for part in value]
    builder.StartVector(4, len(parts), 4)
    for part in reversed(parts):
        builder.PrependUOffsetTRelative(part)
    return builder.EndVector()


def unpack(content: bytes) -> dict[str, Any]:
    """The `ModelMetadata` of a flatbuffer."""
    from flatbuffers import encode, packer
    from flatbuffers.table import Table

    start = encode.Get(packer.uoffset, content, 0)
    return _unpack_table(Table(content, start), "ModelMetadata")


def _unpack_table(table: Any, name: str) -> dict[str, Any]:
    from flatbuffers.number_types import Int8Flags, Uint8Flags, Uint32Flags
    from flatbuffers.table import Table

    found: dict[str, Any] = {}
    for slot, field, kind in _slots(name):
        offset = table.Offset(4 + 2 * slot)
        if not offset:
            continue
        position = table.Pos + offset
        if kind.startswith("union "):
            number = table.Get(Uint8Flags, position)
            names = ENUMS[kind.removeprefix("union ")]
            if number < len(names):  # one that the table leaves out stays unread
                place = table.Offset(6 + 2 * slot)
                inner = Table(table.Bytes, table.Indirect(table.Pos + place))
                found[field] = (names[number], _unpack_table(inner, names[number]))
        elif kind.startswith("enum "):
            names, number = ENUMS[kind.removeprefix("enum ")], table.Get(Int8Flags, position)
            found[field] = names[number] if number < len(names) else number
        elif kind == "uint":
            found[field] = table.Get(Uint32Flags, position)
        elif kind == "string":
            found[field] = table.String(position).decode("utf-8")
        elif kind.startswith("["):
            found[field] = _unpack_vector(table, offset, kind[1:-1])
        else:
            found[field] = _unpack_table(Table(table.Bytes, table.Indirect(position)), kind)
    return found


def _unpack_vector(table: Any, offset: int, kind: str) -> list[Any]:
    from flatbuffers.number_types import Float32Flags
    from flatbuffers.table import Table

    start = table.Vector(offset)
    places = [start + 4 * index for index in range(table.VectorLen(offset))]
    if kind == "float":
        return [table.Get(Float32Flags, place) for place in places]
    if kind == "string":
        return [table.String(place).decode("utf-8") for place in places]
    return [_unpack_table(Table(table.Bytes, table.Indirect(place)), kind) for place in places]


def _slots(table: str) -> list[tuple[int, str, str]]:
    """(place, name, kind) of a table's fields."""
    found, slot = [], 0
    for name, kind in TABLES[table].items():
        found.append((slot, name, kind))
        slot += 2 if kind.startswith("union ") else 1
    return found
