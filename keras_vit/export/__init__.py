"""Models leave: SavedModel for TF Serving, TFLite, ONNX, OpenVINO, each proven equal."""
