"""Measuring models: predictions and their metrics, k-NN, few-shot probe, VTAB-style runs."""

from keras_vit.evaluation.adapters import fine_tune_adapter, probe_adapter
from keras_vit.evaluation.features import extract_features
from keras_vit.evaluation.few_shot import LinearProbe, ProbeResult, few_shot_probe, fit_probe
from keras_vit.evaluation.metrics import ClassRow, Evaluation, metrics
from keras_vit.evaluation.neighbours import knn
from keras_vit.evaluation.prediction import predict_all
from keras_vit.evaluation.vtab import VtabResult, VtabRow, run_vtab

__all__ = [
    "ClassRow",
    "Evaluation",
    "LinearProbe",
    "ProbeResult",
    "VtabResult",
    "VtabRow",
    "extract_features",
    "few_shot_probe",
    "fine_tune_adapter",
    "fit_probe",
    "knn",
    "metrics",
    "predict_all",
    "probe_adapter",
    "run_vtab",
]
