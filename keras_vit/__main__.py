"""`python -m keras_vit`: the command line where its script is not on the path."""

import sys

from keras_vit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
