"""The command line `keras-vit`: `main` and one file a command."""
