"""A stand-in for TF Serving, to try clients where there is none: not a server for use.

It runs a SavedModel by TensorFlow's own loader and speaks the part of TF Serving's REST API and of
its gRPC PredictionService that the clients here use. One request at a time, no batching, nothing
but this machine.
"""

import base64
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+))?(?::(\w+))?")


def tiny_model():
    """A model with random weights, which finds `CLASSES` in anything."""
    import keras_vit  # before Keras: it chooses a backend that is installed

    # isort: split
    import keras

    model = keras_vit.VisionTransformer(
        image_shape=(24, 32, 3),
        patch_size=8,
        hidden_dim=12,
        num_layers=1,
        num_heads=3,
        mlp_dim=16,
        num_classes=len(CLASSES),
    )
    rng = np.random.default_rng(0)
    for variable in model.get_layer("head").weights:  # which start at zero
        variable.assign(keras.ops.convert_to_tensor(rng.normal(0, 1, variable.shape), "float32"))
    return model


def export_tiny(folder):
    """Exports a tiny model as `folder`/1; returns the folder."""
    model = tiny_model()
    from keras_vit.export import to_saved_model

    to_saved_model(model, folder, class_names=CLASSES, top=3, warmup=False)
    return folder


def write_pictures(folder, count=3, size=(500, 375)):
    """Writes JPEGs of coloured noise; returns their paths."""
    from PIL import Image

    rng, paths = np.random.default_rng(0), []
    for number in range(count):
        coarse = rng.integers(0, 256, (6, 8, 3)).astype("uint8")
        path = Path(folder, f"picture_{number}.jpg")
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(path)
    return paths


class Refused(Exception):
    """A request that is not answered; `code`: HTTP's status."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class StandIn:
    """Serves the newest version below a folder; a context manager.

    Attributes:
        folder: the folder.
        rest: address of the REST API.
        grpc: address of the gRPC service; `None` without tensorflow-serving-api.
    """

    def __init__(self, folder, name):
        import tensorflow as tf

        versions = [int(path.name) for path in Path(folder).iterdir() if path.name.isdecimal()]
        self.tf, self.folder, self.name, self.version = tf, folder, name, max(versions)
        self.loaded = tf.saved_model.load(str(Path(folder, str(self.version))))
        self.lock = threading.Lock()
        self.rest = self.grpc = self._grpc_server = None

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.rest = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._start_grpc()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        if self._grpc_server is not None:
            self._grpc_server.stop(None).wait()

    def run(self, name, version, signature, inputs):
        """`{input: array}` to `{output: array}`."""
        if name != self.name or version not in (None, self.version):
            which = "Latest" if version is None else f"Specific({version})"
            raise Refused(404, f"Servable not found for request: {which}({name})")
        function = self.loaded.signatures.get(signature)
        if function is None:
            raise Refused(400, f'Serving signature name: "{signature}" not found')
        specs = function.structured_input_signature[1]
        if set(inputs) != set(specs):
            raise Refused(400, f"inputs must be {sorted(specs)}; received {sorted(inputs)}")
        try:
            with self.lock:
                tensors = {
                    key: self.tf.constant(value, specs[key].dtype) for key, value in inputs.items()
                }
                return {key: value.numpy() for key, value in function(**tensors).items()}
        except (self.tf.errors.OpError, ValueError, TypeError) as error:
            raise Refused(400, getattr(error, "message", str(error))) from error

    def _start_grpc(self):
        try:
            import grpc
            from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
        except ImportError:
            return
        tf, codes = self.tf, {404: grpc.StatusCode.NOT_FOUND, 400: grpc.StatusCode.INVALID_ARGUMENT}

        class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
            def Predict(service, request, context):  # noqa: N802, N805
                spec = request.model_spec
                version = spec.version.value if spec.HasField("version") else None
                signature = spec.signature_name or "serving_default"
                inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
                try:
                    outputs = self.run(spec.name, version, signature, inputs)
                except Refused as error:
                    context.abort(codes[error.code], str(error))
                response = predict_pb2.PredictResponse()
                for key, value in outputs.items():
                    response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
                return response

        sizes = {"grpc.max_send_message_length": -1, "grpc.max_receive_message_length": -1}
        server = grpc.server(ThreadPoolExecutor(8), options=list(sizes.items()))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
        self.grpc = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self._grpc_server = server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the body waits for the head's acknowledgement
    stand_in: StandIn

    def log_message(self, *_):
        pass

    def do_GET(self):  # noqa: N802
        self._answer(self._status)

    def do_POST(self):  # noqa: N802
        self._answer(self._predict)

    def _answer(self, work):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            found = _PATH.fullmatch(self.path)
            if found is None:
                raise Refused(404, f"Malformed request: {self.command} {self.path}")
            name, version, verb = found.groups()
            code, answer = 200, work(name, version and int(version), verb, body)
        except Refused as error:
            code, answer = error.code, {"error": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _status(self, name, version, verb, _body):
        own = self.stand_in
        if verb or name != own.name or version not in (None, own.version):
            raise Refused(404, f"Could not find any versions of model {name}")
        status = {"error_code": "OK", "error_message": ""}
        entry = {"version": str(own.version), "state": "AVAILABLE", "status": status}
        return {"model_version_status": [entry]}

    def _predict(self, name, version, verb, body):
        if verb != "predict":
            raise Refused(404, f"Malformed request: POST {self.path}")
        try:
            request = json.loads(body)
        except ValueError as error:
            raise Refused(400, f"JSON Parse error: {error}") from error
        signature = request.get("signature_name", "serving_default")
        if ("instances" in request) == ("inputs" in request):
            raise Refused(400, "Missing 'inputs' or 'instances' key")
        if "inputs" in request:
            inputs = request["inputs"]
            if not isinstance(inputs, dict) or set(inputs) == {"b64"}:
                inputs = {self._only_input(signature): inputs}
            outputs = self._run(name, version, signature, inputs)
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        rows = request["instances"]
        if not all(isinstance(row, dict) and set(row) != {"b64"} for row in rows):
            only = self._only_input(signature)
            rows = [{only: row} for row in rows]
        inputs = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
        outputs = self._run(name, version, signature, inputs)
        if len(outputs) == 1:
            return {"predictions": next(iter(outputs.values()))}
        return {
            "predictions": [
                dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
            ]
        }

    def _only_input(self, signature):
        function = self.stand_in.loaded.signatures.get(signature)
        if function is None:
            raise Refused(400, f'Serving signature name: "{signature}" not found')
        names = list(function.structured_input_signature[1])
        if len(names) != 1:
            raise Refused(400, f"the inputs must be named: {names}")
        return names[0]

    def _run(self, name, version, signature, inputs):
        decoded = {key: _from_json(value) for key, value in inputs.items()}
        outputs = self.stand_in.run(name, version, signature, decoded)
        return {key: _to_json(value) for key, value in outputs.items()}


def _from_json(value):
    if isinstance(value, list):
        return [_from_json(entry) for entry in value]
    if isinstance(value, dict):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (KeyError, ValueError) as error:
            raise Refused(400, f"a value must be a number, a string or b64: {error}") from error
    return value


def _to_json(array):
    def plain(value):
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return value.decode() if isinstance(value, bytes) else value

    return plain(array.tolist())
