"""TFLite Model Metadata: what is written is read, by our reader and by the schema's rules."""

import json
import struct
import zipfile

import keras
import numpy as np
import pytest

import keras_vit

if keras.backend.backend() != "tensorflow":
    pytest.skip("it does not depend on the backend", allow_module_level=True)
litert = pytest.importorskip("ai_edge_litert.interpreter")

from keras_vit.export import tflite, tflite_graph, tflite_metadata  # noqa: E402

pytestmark = pytest.mark.export

NAMES = ["Katze", "Hund", "größer", "日本", "a, b"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model = keras_vit.VisionTransformer(
        image_shape=(16, 24, 3), patch_size=8, hidden_dim=12, num_layers=1, num_heads=3,
        mlp_dim=20, num_classes=5,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("metadata") / "m.tflite"
    about = {"name": "Pets", "description": "Cats or dogs", "license": "CC0", "author": "Ada"}
    return tflite.to_tflite(model, path, class_names=NAMES, about={**about, "version": "2"})


def test_what_was_written_is_read(written):
    found = tflite_metadata.read_metadata(written)
    assert found["labels"] == NAMES
    assert [found[key] for key in ("name", "version", "author")] == ["Pets", "2", "Ada"]
    (graph,) = found["subgraph_metadata"]
    (images,), (scores,) = graph["input_tensor_metadata"], graph["output_tensor_metadata"]
    assert images["content"]["content_properties"] == (
        "ImageProperties",
        {"color_space": "RGB", "default_size": {"width": 24, "height": 16}},
    )
    # Apps compute (x - mean) / std of pixels 0..255, and the model takes these themselves.
    assert images["process_units"] == [
        {"options": ("NormalizationOptions", {"mean": [0.0], "std": [1.0]})}
    ]
    assert images["stats"] == {"min": [0.0], "max": [255.0]}
    assert scores["name"] == "logits"
    assert scores["associated_files"][0]["type"] == "TENSOR_AXIS_LABELS"


def test_the_file_is_an_archive_and_a_model(written):
    with zipfile.ZipFile(written) as archive:
        assert archive.namelist() == ["labels.txt"] and archive.testzip() is None
        assert archive.read("labels.txt").decode() == "".join(f"{name}\n" for name in NAMES)
    content = written.read_bytes()
    assert content[4:8] == b"TFL3"
    made = litert.Interpreter(model_content=content)
    made.allocate_tensors()
    assert made.get_input_details()[0]["shape"].tolist() == [1, 16, 24, 3]


def fields(content, table):
    """Places of a flatbuffer table's fields, by the format's definition; None for those left out.

    A table starts with the signed distance back to its vtable: sizes of that and of the table,
    then an offset a field, 0 for one that is left out.
    """
    (back,) = struct.unpack_from("<i", content, table)
    (size,) = struct.unpack_from("<H", content, table - back)
    offsets = struct.unpack_from(f"<{(size - 4) // 2}H", content, table - back + 4)
    return [table + offset if offset else None for offset in offsets]


def follow(content, place):
    return place + struct.unpack_from("<I", content, place)[0]


def text(content, place):
    start = follow(content, place)
    (length,) = struct.unpack_from("<I", content, start)
    return content[start + 4 : start + 4 + length].decode()


def test_the_flatbuffer_has_the_fields_where_the_schema_puts_them():
    # Places of metadata_schema.fbs, version 1.1.0, counted by hand.
    content = tflite_metadata.pack(
        {
            "name": "N",
            "license": "L",
            "min_parser_version": "1.0.0",
            "subgraph_metadata": [
                {
                    "input_tensor_metadata": [
                        {
                            "name": "I",
                            "content": {
                                "content_properties": ("ImageProperties", {"color_space": "RGB"})
                            },
                            "process_units": [
                                {"options": ("NormalizationOptions", {"mean": [1, 2], "std": [3]})}
                            ],
                            "associated_files": [{"name": "F", "type": "TENSOR_AXIS_LABELS"}],
                        }
                    ]
                }
            ],
        }
    )
    assert content[4:8] == b"M001"
    model = fields(content, follow(content, 0))
    assert text(content, model[0]) == "N" and text(content, model[5]) == "L"
    assert model[1] is model[2] is model[4] is model[6] is None
    assert text(content, model[7]) == "1.0.0"

    def only(place):
        """The fields of the single table in a vector."""
        start = follow(content, place)
        assert struct.unpack_from("<I", content, start) == (1,)
        return fields(content, follow(content, start + 4))

    images = only(only(model[3])[2])
    assert text(content, images[0]) == "I"
    kind, properties = fields(content, follow(content, images[3]))[:2]
    assert content[kind] == 2  # ImageProperties
    (color, *_) = fields(content, follow(content, properties))
    assert content[color] == 1  # RGB
    kind, options = only(images[4])[:2]
    assert content[kind] == 1  # NormalizationOptions
    mean, std = fields(content, follow(content, options))[:2]
    for place, values in ((mean, (1.0, 2.0)), (std, (3.0,))):
        start = follow(content, place)
        assert struct.unpack_from("<I", content, start) == (len(values),)
        assert struct.unpack_from(f"<{len(values)}f", content, start + 4) == values
    file = only(images[6])
    assert text(content, file[0]) == "F" and content[file[2]] == 2  # TENSOR_AXIS_LABELS


def test_normalisation_of_a_model_that_leaves_it_to_the_app(tmp_path):
    model = keras_vit.VisionTransformer(
        image_shape=(8, 8, 3), patch_size=8, hidden_dim=12, num_layers=1, num_heads=3,
        mlp_dim=20, num_classes=None, include_rescaling=False, pixel_range="imagenet",
    )  # fmt: skip
    path = tflite.to_tflite(model, tmp_path / "m.tflite")
    found = tflite_metadata.read_metadata(path)
    assert found["labels"] == []
    (graph,) = found["subgraph_metadata"]
    options = graph["input_tensor_metadata"][0]["process_units"][0]["options"][1]
    np.testing.assert_allclose(options["mean"], [123.675, 116.28, 103.53])
    np.testing.assert_allclose(options["std"], [58.395, 57.12, 57.375])
    assert "associated_files" not in graph["output_tensor_metadata"][0]
    assert graph["output_tensor_metadata"][0]["name"] == "features"


def test_a_file_without_metadata(written, tmp_path):
    model = tflite_graph.parse(written.read_bytes())
    model.metadata = []
    path = tmp_path / "bare.tflite"
    path.write_bytes(tflite_graph.serialise(model))
    with pytest.raises(ValueError, match="has no metadata"):
        tflite_metadata.read_metadata(path)


def test_tflite_supports_own_reader_agrees(written):
    displayer = pytest.importorskip(
        "tflite_support.metadata", reason="tflite-support is not installed", exc_type=ImportError
    )
    found = displayer.MetadataDisplayer.with_model_file(str(written))
    assert json.loads(found.get_metadata_json())["name"] == "Pets"
    assert found.get_packed_associated_file_list() == ["labels.txt"]


def test_names_with_signs_that_part_lines_elsewhere(tmp_path):
    names = ["a\u2028b", "c\x85d", "e\vf"]
    model = keras_vit.VisionTransformer(
        image_shape=(8, 8, 3), patch_size=8, hidden_dim=4, num_layers=1, num_heads=1, mlp_dim=4,
        num_classes=3,
    )  # fmt: skip
    path = tflite.to_tflite(model, tmp_path / "a.tflite", class_names=names)
    assert list(tflite_metadata.read_metadata(path)["labels"]) == names
