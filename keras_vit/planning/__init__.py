"""What a training run will need: memory a device, arithmetic, time. Arithmetic alone, no Keras."""
