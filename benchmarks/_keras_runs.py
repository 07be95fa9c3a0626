"""Training and inference of a Keras model, on one batch that stays on the device.

Through `fit` and `predict`, and through the functions that these call for every batch. Keras hands
JAX and PyTorch arrays that a generator yields to the step as they are; an array given whole would
be cut into batches by copies. TensorFlow gets a `tf.data` pipeline of its tensors.
"""

import itertools
import threading
import time

import _measure as measure
import keras


class Borders(keras.callbacks.Callback):
    """Notes the time of every `steps`-th batch, once the batch before it has come to its end.

    Keras reads each batch's logs (the loss, the outputs) in a thread of its own as long as all
    callbacks are `async_safe`. To wait for that thread at a border is to wait for the device, and
    nothing else is slowed down.
    """

    async_safe = True

    def __init__(self, warm, steps):
        super().__init__()
        self.warm, self.steps, self.times = warm, steps, []
        self._ended = threading.Condition()
        self._last = -1

    def _begin(self, batch):
        if batch < self.warm or (batch - self.warm) % self.steps:
            return
        with self._ended:
            self._ended.wait_for(lambda: self._last >= batch - 1)
        self.times.append(time.perf_counter())

    def _end(self, batch):
        with self._ended:
            self._last = max(self._last, batch)
            self._ended.notify_all()

    def on_train_batch_begin(self, batch, logs=None):
        self._begin(batch)

    def on_predict_batch_begin(self, batch, logs=None):
        self._begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        self._end(batch)

    def on_predict_batch_end(self, batch, logs=None):
        self._end(batch)

    def windows(self):
        return [after - before for before, after in itertools.pairwise(self.times)]


def resident(batch):
    """The batch over and over, as `fit` and `predict` take it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(batch).repeat().prefetch(2)
    return (batch for _ in itertools.count())


def steps_of_fit(model, batch):
    """(a call that trains one step, what waits for it, what gives the model its state back)."""
    backend = keras.backend.backend()
    model.make_train_function()
    if backend == "jax":
        return _jax_steps(model.train_function, _train_groups(model), batch)
    return _stateful_steps(model.train_function, backend, batch)


def steps_of_predict(model, batch):
    """As `steps_of_fit`, of inference."""
    backend = keras.backend.backend()
    model.make_predict_function()
    if backend == "jax":
        groups = (model.trainable_variables, model.non_trainable_variables)
        return _jax_steps(model.predict_function, groups, batch)
    return _stateful_steps(model.predict_function, backend, batch, listed=True)


def _train_groups(model):
    variables = (model.trainable_variables, model.non_trainable_variables)
    return (*variables, model.optimizer.variables, model.metrics_variables)


def _jax_steps(function, groups, batch):
    """The step donates its state, so that the model gets the last one back."""
    import jax

    state = tuple([variable.value for variable in group] for group in groups)
    now, feed = [None, state], itertools.repeat(batch)

    def step():
        now[:] = function(now[1], feed)

    def give_back():
        for group, values in zip(groups, now[1], strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)

    return step, lambda: jax.block_until_ready(now), give_back


def _stateful_steps(function, backend, batch, listed=False):
    """PyTorch's functions take a list of one batch; TensorFlow's an iterator, or such a list."""
    # A list, as a DataLoader makes of a tuple: compiled code is for one of the two.
    device = measure.framework(backend)
    stream, now = iter(resident(batch)), [None]
    if backend == "torch":
        take = lambda: [list(batch)]  # noqa: E731
    elif listed:
        take = lambda: [next(stream)]  # noqa: E731
    else:
        take = lambda: stream  # noqa: E731

    def step():
        now[0] = function(take())

    waits = device.wait if backend == "torch" else lambda: device.wait(now[0])
    return step, waits, lambda: None


def train(model, batch, device, options, case):
    """First step, images a second through `fit` and in a loop of steps, peak, recompilations."""
    count = measure.Compilations(device)
    device.forget_peak()
    start = time.perf_counter()
    model.fit(resident(batch), steps_per_epoch=1, verbose=0, shuffle=False)
    found = {"first_step_seconds": round(time.perf_counter() - start, 2)}
    found["compilations"] = count.so_far()
    if options.windows:
        # In training mode, which `fit` ends with its epoch.
        if keras.backend.backend() == "torch":
            model.train()
        step, wait, give_back = steps_of_fit(model, batch)
        times, steps = measure.windows(step, wait, options.seconds, options.windows)
        give_back()
        found["raw"] = measure.speed(times, steps, case, passes=3)
        borders, total = borders_of(steps, options)
        settings = {"steps_per_epoch": total, "verbose": 0, "shuffle": False}
        model.fit(resident(batch), callbacks=[borders], **settings)
        found["fit"] = measure.speed(borders.windows(), steps, case, passes=3)
    else:
        model.fit(resident(batch), steps_per_epoch=2, verbose=0, shuffle=False)
    found["recompilations"] = count.so_far()
    found["peak_gib"] = measure.peak_gib(device)
    return found


def predict(model, batch, device, options, case):
    """As `train`, of inference; the raw call is the function that `predict` calls for a batch."""
    images = batch[:1]
    count = measure.Compilations(device)
    device.forget_peak()
    start = time.perf_counter()
    model.predict(resident(images), steps=1, verbose=0)
    found = {"first_step_seconds": round(time.perf_counter() - start, 2)}
    found["compilations"] = count.so_far()
    if options.windows:
        step, wait, give_back = steps_of_predict(model, images)
        times, steps = measure.windows(step, wait, options.seconds, options.windows)
        give_back()
        found["raw"] = measure.speed(times, steps, case, passes=1)
    # Before `predict`, which keeps all outputs on the device until its end; and unless training
    # came before, whose optimizer stays there.
    found["peak_gib"] = None if "train" in case else measure.peak_gib(device)
    if options.windows:
        borders, total = borders_of(steps, options)
        start = time.perf_counter()
        model.predict(resident(images), steps=total, verbose=0, callbacks=[borders])
        seconds = time.perf_counter() - start
        found["predict"] = measure.speed(borders.windows(), steps, case, passes=1)
        found["predict"]["whole_call"] = round(total * options.batch / seconds, 2)
    found["recompilations"] = count.so_far()
    return found


def partial_batch(model, batch, device):
    """Compilations in two epochs that end with a smaller batch: at most 1 is due, and then 0."""
    count, found = measure.Compilations(device), []
    rest = tuple(part[: len(part) // 2 + 1] for part in batch)
    for _ in range(2):
        epoch = (part for part in (batch, rest))
        if keras.backend.backend() == "tensorflow":
            epoch = resident(batch).take(1).concatenate(resident(rest).take(1))
        model.fit(epoch, steps_per_epoch=2, verbose=0, shuffle=False)
        found.append(count.so_far())
    return found


def borders_of(steps, options):
    """The callback of some windows, and how many batches they take."""
    # The last batch is there for its beginning, the last border.
    return Borders(measure.WARM, steps), measure.WARM + steps * options.windows + 1
