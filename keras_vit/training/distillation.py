"""Knowledge distillation: a student learns from labels and from a teacher's answers."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.engines.engine import current
from keras_vit.engines.gradients import untracked
from keras_vit.engines.model_hooks import SpreadsOut
from keras_vit.engines.replicas import replicas_in_step
from keras_vit.models import compiled
from keras_vit.models.base import FlatModel
from keras_vit.training.losses import accuracy, shares

KINDS = ("hard", "soft")
TEACHER_OUTPUTS = ("logits", "probabilities")
_SMALLEST = float(np.finfo("float32").tiny)


@keras.saving.register_keras_serializable(package="keras_vit")
class Distiller(SpreadsOut, keras.Model):
    """Trains a student on labels and on a teacher's answers to the same images.

    A DeiT student (`distillation="head"`) has two heads: the class head learns the labels, the
    distillation head learns from the teacher. Any other student learns both with its one head.
    The loss is `(1 - alpha) * labels + alpha * teacher`, where the first is the cross-entropy, and
    the second is, averaged over the batch:

    - "hard": the cross-entropy with the teacher's `argmax`;
    - "soft": the Kullback-Leibler divergence from the teacher's distribution to the student's,
      both softened by the temperature, times its square.

    In evaluation the loss is the cross-entropy with the labels of the mean logits, and the
    teacher does not run. The `student` is trained in place: save, evaluate and use that.

    Args:
        student: the model to train: one of this package, or a Keras model that gives logits.
        teacher: any Keras model that gives `(batch, classes)` for images of the student's pixel
            range. It runs as in inference, and is not changed. Images are resized to its input.
        kind: `"hard"` or `"soft"`.
        alpha: share of the teacher's part, in [0, 1].
        temperature: softens both distributions; for "soft".
        label_smoothing: share of the labels' mass spread over all classes; not of the teacher's.
        teacher_outputs: `"logits"` or `"probabilities"`; `None`: what a model of this package
            says, or "logits".
        name: name of the model.

    Call arguments:
        inputs: images as the student takes them.
        training: whether to run the teacher too.

    Returns:
        Logits `(batch, classes)`, the mean of both heads'. In training a dict: "logits", "head"
        and "head_dist" (the same tensor where there is one head), and "teacher", log-probabilities.

    Raises:
        ValueError: on arguments out of range, or models that do not go together.

    Example:
        ```python
        student = keras_vit.ViTTi16(num_classes=10, distillation="head")
        distiller = Distiller(student, teacher)
        distiller.compile(keras.optimizers.AdamW(1e-3))
        distiller.fit(images, labels)
        student.save("student.keras")
        ```

    Reference:
        arXiv 2012.12877, section 4 (its code divides the soft part by the classes too);
        arXiv 1503.02531.
    """

    def __init__(
        self,
        student,
        teacher,
        kind="hard",
        alpha=0.5,
        temperature=3.0,
        label_smoothing=0.0,
        *,
        teacher_outputs=None,
        name=None,
    ):
        # Autocasting would round the pixels before student and teacher see them.
        super().__init__(name=name, dtype=student.dtype_policy, autocast=False)
        self.kind = _checks.choice("kind", kind, KINDS)
        self.alpha = _share("alpha", alpha)
        self.temperature = _checks.positive_float("temperature", temperature)
        self.label_smoothing = _checks.rate("label_smoothing", label_smoothing)
        if teacher_outputs is None:
            teacher_outputs = _outputs_of(teacher)
        self.teacher_outputs = _checks.choice("teacher_outputs", teacher_outputs, TEACHER_OUTPUTS)
        heads = _heads(student)
        _check_together(student, teacher, heads)
        self.student = student
        self.teacher = teacher
        # Keras must not take it for a further layer: its weights are the student's.
        self._hidden = MappingProxyType({"heads": heads})
        self.built = True

    def compile(self, optimizer="adamw", loss=None, metrics=(accuracy,), **kwargs):
        """Compiles as `keras.Model.compile` does; the loss is the distiller's own.

        Args:
            optimizer: trains the student.
            loss: must stay `None`.
            metrics: of the mean logits and the labels.
            **kwargs: as in `keras.Model.compile`.
        """
        if loss is not None:
            raise ValueError(
                "A Distiller computes its own loss: set `kind`, `alpha`, `temperature` and "
                f"`label_smoothing` instead. Received: loss={loss!r}"
            )
        for model in self._compiled_models():
            compiled.forget(model)
        super().compile(optimizer=optimizer, metrics=list(metrics or ()), **kwargs)

    def _compiled_models(self):
        """What `models.compiled` compiles on PyTorch: student and teacher of this package."""
        pairs = [(self.student, self._hidden["heads"]), (self.teacher, self.teacher)]
        return [called for model, called in pairs if isinstance(model, FlatModel)]

    def _ready(self):
        return all([compiled.ready(model) for model in self._compiled_models()])

    def _rest(self, trained):
        for model in self._compiled_models():
            compiled.rest(model, trained=trained)

    def get_compile_config(self):
        """Returns the arguments of `compile`; whether to compile, each backend decides."""
        config = super().get_compile_config()
        return {**config, "jit_compile": "auto"} if config else config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def call(self, inputs, training=None):
        return current().inside(self, self._answers, (inputs,), {"training": training})

    def _answers(self, inputs, training):
        found = _called(self._hidden["heads"], inputs, training)
        head, head_dist = found if isinstance(found, (list, tuple)) else (found, found)
        head, head_dist = ops.cast(head, "float32"), ops.cast(head_dist, "float32")
        logits = head if head_dist is head else (head + head_dist) / 2.0
        if not training:
            return logits
        answers = {"logits": logits, "head": head, "head_dist": head_dist}
        return {**answers, "teacher": self._ask_teacher(inputs)}

    def _ask_teacher(self, images):
        """Log-probabilities `(batch, classes)`, float32, that no gradient passes."""
        images = ops.cast(images, "float32")
        size = tuple(getattr(self.teacher, "input_shape", ())[1:3])
        if None not in size and size and size != tuple(images.shape[1:3]):
            images = ops.image.resize(
                images, size, interpolation="bilinear", data_format="channels_last"
            )
        with untracked():
            answers = ops.cast(_called(self.teacher, images, False), "float32")
        answers = ops.stop_gradient(answers)
        if self.teacher_outputs == "probabilities":
            return ops.log(ops.maximum(answers, _SMALLEST))
        return ops.log_softmax(answers, axis=-1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The loss of a batch; see the class."""
        if isinstance(y_pred, dict):
            losses = (1.0 - self.alpha) * self._label_loss(y, y_pred["head"])
            losses = losses + self.alpha * self._teacher_loss(y_pred)
        else:
            losses = self._label_loss(y, y_pred)
        if sample_weight is not None:
            losses = losses * ops.reshape(ops.cast(sample_weight, losses.dtype), (-1,))
        loss = ops.mean(losses)
        for penalty in self.losses:  # of the student's regularizers
            loss = loss + ops.sum(ops.cast(penalty, "float32"))
        return loss / replicas_in_step()

    def _label_loss(self, labels, logits):
        classes = logits.shape[-1]
        target = shares(labels, classes)
        target = target * (1.0 - self.label_smoothing) + self.label_smoothing / classes
        return -ops.sum(target * ops.log_softmax(logits, axis=-1), axis=-1)

    def _teacher_loss(self, answers):
        logits, teacher = answers["head_dist"], answers["teacher"]
        if self.kind == "hard":
            target = ops.one_hot(ops.argmax(teacher, axis=-1), logits.shape[-1], dtype="float32")
            return -ops.sum(target * ops.log_softmax(logits, axis=-1), axis=-1)
        known = ops.log_softmax(teacher / self.temperature, axis=-1)
        found = ops.log_softmax(logits / self.temperature, axis=-1)
        return self.temperature**2 * ops.sum(ops.exp(known) * (known - found), axis=-1)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Measures the mean logits."""
        logits = y_pred["logits"] if isinstance(y_pred, dict) else y_pred
        return super().compute_metrics(x, y, logits, sample_weight)

    # What trains is the student's, whatever the teacher's own variables say.

    @property
    def trainable_variables(self):
        """The student's trainable variables."""
        return self.student.trainable_variables if self.trainable else []

    @property
    def non_trainable_variables(self):
        """All others, the teacher's among them."""
        return _without(self.variables, self.trainable_variables)

    @property
    def trainable_weights(self):
        """The student's trainable weights."""
        return self.student.trainable_weights if self.trainable else []

    @property
    def non_trainable_weights(self):
        """All others, the teacher's among them."""
        return _without(self.weights, self.trainable_weights)

    def get_config(self):
        return {
            "student": keras.saving.serialize_keras_object(self.student),
            "teacher": keras.saving.serialize_keras_object(self.teacher),
            "kind": self.kind,
            "alpha": self.alpha,
            "temperature": self.temperature,
            "label_smoothing": self.label_smoothing,
            "teacher_outputs": self.teacher_outputs,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Builds the distiller that `get_config` described, with both models."""
        models = {
            key: keras.saving.deserialize_keras_object(config[key], custom_objects)
            for key in ("student", "teacher")
        }
        return cls(**{**config, **models})


def _called(model: keras.Model, inputs: Any, training: bool | None) -> Any:
    """The model's outputs, by its compiled parts where it has some."""
    outputs = compiled.call(model, inputs, training)
    if outputs is None:
        return model(inputs, training=training)
    return outputs if len(outputs) > 1 else outputs[0]


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be a number in [0, 1]. Received: {name}={value!r}")
    return float(value)


def _outputs_of(teacher) -> str:
    if not isinstance(teacher, FlatModel):
        return "logits"
    activation = teacher.flat_config["classifier_activation"]
    if activation == "sigmoid":
        raise ValueError(
            "`teacher` gives a sigmoid for each class, which is no distribution: build it with "
            "`classifier_activation=None`."
        )
    return "logits" if activation is None else "probabilities"


def _heads(student: keras.Model) -> keras.Model:
    """The student with the logits of one or two heads as outputs, before any activation."""
    if not isinstance(student, FlatModel):
        return student
    if student.flat_config["num_classes"] is None:
        raise ValueError("`student` has no head: build it with `num_classes`.")
    names = ["head"]
    if student.flat_config.get("distillation") == "head":
        names.append("head_dist")
    outputs = [student.get_layer(name).output for name in names]
    return keras.Model(student.input, outputs if len(outputs) > 1 else outputs[0])


def _check_together(student, teacher, heads) -> None:
    if student is teacher:
        raise ValueError("`student` and `teacher` must be two models. Received: the same twice")
    shared = {id(v) for v in student.weights} & {id(v) for v in teacher.weights}
    if shared:
        raise ValueError(
            f"`student` and `teacher` share {len(shared)} weights, so that training would change "
            "the teacher: build one of them anew."
        )
    for name, model in (("student", student), ("teacher", teacher)):
        if not model.built:
            raise ValueError(f"`{name}` must be built: call it once on a batch of images.")
    # Only a functional or sequential model knows its outputs beforehand.
    ours, theirs = (
        tuple(model.outputs[0].shape) if getattr(model, "outputs", None) else None
        for model in (heads, teacher)
    )
    if ours and theirs and (len(theirs) != 2 or theirs != ours):
        raise ValueError(
            f"`teacher` must give (batch, {ours[-1]}) as the student does. "
            f"Received: output shape {theirs}"
        )
    channels = [getattr(m, "input_shape", (None,))[-1] for m in (student, teacher)]
    if None not in channels and channels[0] != channels[1]:
        raise ValueError(
            "`teacher` must take images with the student's channels. "
            f"Received: student {channels[0]}, teacher {channels[1]}"
        )


def _without(variables: list, others: list) -> list:
    left_out = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) not in left_out]
