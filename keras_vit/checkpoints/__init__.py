"""Weights from elsewhere: how they are resampled. NumPy only, no Keras."""
