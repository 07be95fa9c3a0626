"""What a speed benchmark asks of JAX, PyTorch or TensorFlow itself, by the same names.

Each class is imported with its framework only; `framework(name)` makes the one that is asked for.
"""

import importlib
import importlib.metadata

# Side of the square matrices, and products a round, of the ceiling: on a GPU and on a CPU.
ON_GPU, ON_CPU = (8192, 20), (1024, 4)
DTYPES = {
    "mixed_bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "mixed_float16": "float16",
    "float16": "float16",
    "float32": "float32",
}


def installed(name):
    """The package, or a SystemExit of one sentence."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # What is missing may be something that it needs itself.
        package = (error.name or name).partition(".")[0].replace("_", "-")
        raise SystemExit(f"{name} is not usable: `pip install {package}` ({error})") from None


def versions(*names):
    """The installed versions of packages; those that are missing are left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Torch:
    """PyTorch on the first GPU, or on the CPU."""

    name = "torch"

    def __init__(self):
        self.torch = installed("torch")
        self.gpu = self.torch.cuda.is_available()
        self.device = "cuda" if self.gpu else "cpu"
        self.card = self.torch.cuda.get_device_name(0) if self.gpu else "CPU"
        self.size, self.products = ON_GPU if self.gpu else ON_CPU

    def wait(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def put(self, array):
        return self.torch.as_tensor(array, device=self.device)

    def product(self, dtype):
        """A call that multiplies two random matrices `products` times."""
        kind = getattr(self.torch, dtype)
        left, right = (
            self.torch.randn(self.size, self.size, device=self.device).to(kind) for _ in range(2)
        )

        def multiply():
            for _ in range(self.products):
                self.torch.mm(left, right)
            self.wait()

        return multiply

    def forget_peak(self):
        """Whether the peak starts anew."""
        if self.gpu:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()
        return self.gpu

    def peak(self):
        return self.torch.cuda.max_memory_allocated() if self.gpu else None

    def count_compilations(self):
        """A call that tells how many graphs dynamo has compiled so far."""
        counters = importlib.import_module("torch._dynamo.utils").counters
        return lambda: int(counters["stats"]["unique_graphs"])


class Jax:
    """JAX on its default device."""

    name = "jax"

    def __init__(self):
        self.jax = installed("jax")
        self.device = self.jax.local_devices()[0]
        self.gpu = self.device.platform == "gpu"
        self.card = self.device.device_kind if self.device.platform != "cpu" else "CPU"
        self.size, self.products = ON_GPU if self.gpu else ON_CPU

    def wait(self, value=None):
        self.jax.block_until_ready(value)

    def put(self, array):
        # Without a device: arrays bound to one make JAX compile once more for the next step.
        return self.jax.device_put(array)

    def product(self, dtype):
        """A call that multiplies two random matrices `products` times."""
        jax, numpy = self.jax, self.jax.numpy
        left, right = (
            jax.random.normal(jax.random.key(seed), (self.size, self.size)).astype(dtype)
            for seed in range(2)
        )
        once = jax.jit(numpy.matmul)

        def multiply():
            for _ in range(self.products):
                result = once(left, right)
            result.block_until_ready()

        return multiply

    def forget_peak(self):
        """Whether the peak starts anew: JAX cannot."""
        return False

    def peak(self):
        stats = self.device.memory_stats() or {}
        return stats.get("peak_bytes_in_use")

    def count_compilations(self):
        """A call that tells how many steps JAX has compiled so far.

        Those of `train_step` and `predict_step` count, not the small ones of a loose operation.
        """
        found = []

        def listen(event, duration, **details):
            name = str(details.get("fun_name", "step"))
            if event.endswith("backend_compile_duration") and "step" in name:
                found.append(name)

        self.jax.monitoring.register_event_duration_secs_listener(listen)
        return lambda: len(found)


class TensorFlow:
    """TensorFlow on the first GPU, or on the CPU."""

    name = "tensorflow"

    def __init__(self):
        self.tf = installed("tensorflow")
        cards = self.tf.config.list_physical_devices("GPU")
        self.gpu = bool(cards)
        details = self.tf.config.experimental.get_device_details(cards[0]) if cards else {}
        self.card = details.get("device_name", "GPU") if cards else "CPU"
        self.size, self.products = ON_GPU if self.gpu else ON_CPU

    def wait(self, value=None):
        for part in self.tf.nest.flatten(value):
            if hasattr(part, "numpy"):
                part.numpy()

    def put(self, array):
        return self.tf.constant(array)

    def product(self, dtype):
        """A call that multiplies two random matrices `products` times."""
        shape = (self.size, self.size)
        left, right = (self.tf.cast(self.tf.random.normal(shape), dtype) for _ in range(2))

        def multiply():
            for _ in range(self.products):
                result = self.tf.matmul(left, right)
            result[:1, :1].numpy()

        return multiply

    def forget_peak(self):
        """Whether the peak starts anew."""
        if self.gpu:
            self.tf.config.experimental.reset_memory_stats("GPU:0")
        return self.gpu

    def peak(self):
        return self.tf.config.experimental.get_memory_info("GPU:0")["peak"] if self.gpu else None

    def count_compilations(self):
        """A call that tells how often TensorFlow has traced a step."""
        # No public counter: a function's own count is asked where the function is known.
        return lambda: None


FRAMEWORKS = {kind.name: kind for kind in (Torch, Jax, TensorFlow)}


def framework(name):
    return FRAMEWORKS[name]()
