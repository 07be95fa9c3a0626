"""The look of all figures."""

from __future__ import annotations

from typing import Any

INK, MUTED, LINES = "#111827", "#6b7280", "#e5e7eb"
BLUE, ORANGE, RED = "#2563eb", "#ea580c", "#dc2626"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "text.usetex": False,
    "axes.edgecolor": LINES,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": LINES,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "legend.frameon": False,
}
