"""Models convert to TFLite with builtin operators alone, and serve any batch."""

import keras
import numpy as np
import pytest

import keras_vit

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="conversion starts from TensorFlow"
    ),
    pytest.mark.filterwarnings("ignore"),  # the converter's own deprecations
]

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 5}
MODELS = {
    "plain": {},
    "erf": {"activation": "gelu"},
    "swiglu_scaled": {"activation": "swiglu", "layer_scale_init": 0.1, "qk_norm": True},
    "relative": {"position_embedding": "relative"},
    "map_registers_2d": {
        "position_embedding": "learned_2d",
        "pooling": "map",
        "num_registers": 2,
    },
    "hybrid": {"stem": {"block_counts": (1, 1), "width": 32}, "patch_size": 2},
}


@pytest.mark.parametrize("name", MODELS)
def test_builtin_operators_only(name, tmp_path):
    import tensorflow as tf

    model = keras_vit.VisionTransformer(**{**BASE, **MODELS[name]})
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        if weight.path.startswith("head/"):
            weight.assign(rng.normal(size=weight.shape))
    model.export(tmp_path / "saved", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    (source,), (target,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert "images" in source["name"]
    for batch in (1, 4):
        images = rng.integers(0, 256, (batch, *BASE["image_shape"])).astype("float32")
        interpreter.resize_tensor_input(source["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], images)
        interpreter.invoke()
        expected = model.predict(images, verbose=0)
        assert np.ptp(expected) > 0.1  # logits that could differ
        np.testing.assert_allclose(interpreter.get_tensor(target["index"]), expected, atol=1e-4)
