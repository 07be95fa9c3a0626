"""Models leave for where they will run: SavedModel, TFLite, ONNX, OpenVINO, each compared.

Whatever the backend, a model becomes a `.keras` file, and under TensorFlow a float32 SavedModel, of
which the other formats are made.
"""

from keras_vit.export.onnx import to_onnx
from keras_vit.export.openvino import to_openvino
from keras_vit.export.saved_model import to_saved_model
from keras_vit.export.sensitivity import PartLoss, Sensitivity, sensitivity
from keras_vit.export.tflite import to_tflite
from keras_vit.export.tflite_metadata import read_metadata
from keras_vit.export.verification import Run, Verification, VerificationError
from keras_vit.export.verify import verify

__all__ = [
    "PartLoss",
    "Run",
    "Sensitivity",
    "Verification",
    "VerificationError",
    "read_metadata",
    "sensitivity",
    "to_onnx",
    "to_openvino",
    "to_saved_model",
    "to_tflite",
    "verify",
]
