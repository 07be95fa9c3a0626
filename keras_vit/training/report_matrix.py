"""How strongly the cells of a report's matrix are coloured."""

from __future__ import annotations

import numpy as np

RIGHT = (37, 99, 235)
WRONG = (220, 38, 38)


def strengths(matrix: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How strongly each cell of a confusion matrix is coloured.

    Args:
        matrix: `(size, size)`; rows are true classes.
        counts: `(size,)`, all images of each true class, also those taken for other classes.

    Returns:
        `(size, size)`, 0 to 1: the share of the row; of mistakes its root, so that one in a
        hundred can be seen.
    """
    shares = matrix / np.maximum(counts, 1)[:, None]
    mistakes = np.sqrt(shares)
    np.fill_diagonal(mistakes, np.diagonal(shares))
    return mistakes
