"""Asks a TF Serving server what pictures show, over REST or gRPC.

    python examples/serving_client.py --rest http://localhost:8501 --model vit cat.jpg dog.png
    python examples/serving_client.py --grpc localhost:8500 --model vit cat.jpg dog.png

The server has a model that `keras-vit export --to saved_model` wrote: its signature `serve_bytes`
takes files as they are, and gives the names and scores of the best classes. REST needs nothing but
Python; gRPC needs tensorflow-serving-api.
"""

import argparse
import base64
import http.client
import json
import re
import sys
import tempfile
import urllib.parse
from pathlib import Path

SIGNATURE = "serve_bytes"
INSTALL = "gRPC needs tensorflow-serving-api: pip install tensorflow-serving-api"


class ServingError(Exception):
    """The server is not there, or refuses; the message says which."""


class RestClient:
    """Talks to a server's REST API over one connection.

    Args:
        address: such as http://localhost:8501.
        model: name of the model on the server.
        version: number of its version; `None`: the newest.
        signature: the signature to call.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, address, model, version=None, signature=SIGNATURE, timeout=60.0):
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServingError(f"--rest must be like http://localhost:8501. Received: {address}")
        kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        self.address, self.model, self.signature = address.rstrip("/"), model, signature
        self.connection = kind[parts.scheme](parts.hostname, parts.port, timeout=timeout)
        number = "" if version is None else f"/versions/{version}"
        name = urllib.parse.quote(model, safe="")
        self.path = f"{parts.path.rstrip('/')}/v1/models/{name}{number}"

    def predict(self, files):
        """Sends files' bytes; returns `{output: a row for each file}`."""
        encoded = [{"b64": base64.b64encode(file).decode()} for file in files]
        body = {"signature_name": self.signature, "inputs": {"image_bytes": encoded}}
        return self._ask("POST", f"{self.path}:predict", body)["outputs"]

    def versions(self):
        """Version -> state, of all that the server has of the model."""
        found = self._ask("GET", self.path)["model_version_status"]
        return {entry["version"]: entry["state"] for entry in found}

    def close(self):
        self.connection.close()

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        try:
            self.connection.request(method, path, data, {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            status, text = response.status, response.read()
        except TimeoutError as error:
            self.connection.close()
            raise ServingError(f"{self.address} did not answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            raise ServingError(f"no server at {self.address} ({error or 'no answer'})") from error
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ServingError(f"{self.address} is no TF Serving (HTTP {status})") from error
        if status == http.HTTPStatus.NOT_FOUND:
            raise ServingError(f"the server has no such model or version: {answer.get('error')}")
        if status != http.HTTPStatus.OK:
            raise ServingError(answer.get("error") or f"HTTP {status}")
        return answer


class GrpcClient:
    """As `RestClient`, over gRPC; the address is such as localhost:8500."""

    def __init__(self, address, model, version=None, signature=SIGNATURE, timeout=60.0):
        try:
            import grpc
            import tensorflow as tf
            from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
        except ImportError as error:
            raise ServingError(f"{INSTALL} ({error})") from error
        self.grpc, self.tf, self.request = grpc, tf, predict_pb2.PredictRequest
        self.address, self.model, self.version = address, model, version
        self.signature, self.timeout = signature, timeout
        sizes = {"grpc.max_send_message_length": -1, "grpc.max_receive_message_length": -1}
        self.channel = grpc.insecure_channel(address, options=list(sizes.items()))
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)

    def predict(self, files):
        """Sends files' bytes; returns `{output: a row for each file}`."""
        request = self.request()
        request.model_spec.name = self.model
        request.model_spec.signature_name = self.signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        tensor = self.tf.make_tensor_proto(list(files), self.tf.string, [len(files)])
        request.inputs["image_bytes"].CopyFrom(tensor)
        try:
            outputs = self.stub.Predict(request, self.timeout).outputs
        except self.grpc.RpcError as error:
            raise ServingError(self._reason(error)) from error
        arrays = {name: self.tf.make_ndarray(value) for name, value in outputs.items()}
        return {
            name: [[entry.decode() for entry in row] for row in array]
            if array.dtype == object
            else array.tolist()
            for name, array in arrays.items()
        }

    def close(self):
        self.channel.close()

    def _reason(self, error):
        code = self.grpc.StatusCode
        if error.code() == code.UNAVAILABLE:
            return f"no server at {self.address} ({error.details()})"
        if error.code() == code.DEADLINE_EXCEEDED:
            return f"{self.address} did not answer in time"
        if error.code() == code.NOT_FOUND:
            return f"the server has no such model or version: {error.details()}"
        return error.details() or error.code().name


def add_server_options(parser):
    """The options that say where the server is; `connect` reads them."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--rest", metavar="URL", help="such as http://localhost:8501 (the default)")
    where.add_argument("--grpc", metavar="HOST:PORT", help="such as localhost:8500")
    parser.add_argument("--model", default="vit", help="its name on the server (vit)")
    parser.add_argument("--version", type=int, help="its version (the newest)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")


def connect(options):
    """A client for what the options say."""
    kind, address = RestClient, options.rest or "http://localhost:8501"
    if options.grpc:
        kind, address = GrpcClient, options.grpc
    return kind(address, options.model, options.version, timeout=options.timeout)


def read(paths):
    """The files' bytes."""
    try:
        return [Path(path).read_bytes() for path in paths]
    except OSError as error:
        raise ServingError(f"cannot read {error.filename}: {error.strerror}") from error


def with_names(message, paths):
    """The server's message, its entries of the batch called by the files' names."""
    # What TensorFlow adds is about its graph.
    found = re.search(r"assertion failed: \[([^\n]*)\]", message)
    message = found[1] if found and "image_bytes[" in found[1] else message

    def name(entry):
        index = int(entry[1])
        return str(paths[index]) if index < len(paths) else entry[0]

    return re.sub(r"image_bytes\[(\d+)\]", name, message)


def show(paths, answer):
    """Prints the best classes of each file."""
    for path, names, scores in zip(paths, answer["classes"], answer["scores"], strict=True):
        best = ", ".join(f"{name} {score:.1%}" for name, score in zip(names, scores, strict=True))
        print(f"{path}: {best}")


def ask(options, paths):
    """One request; returns whether it was answered, else prints why not."""
    client = None
    try:
        files = read(paths)
        client = connect(options)
        show(paths, client.predict(files))
    except ServingError as error:
        print(f"error: {with_names(str(error), paths)}", file=sys.stderr)
        return False
    finally:
        if client is not None:
            client.close()
    return True


def smoke(parser):
    """Exports a tiny untrained model, and asks a stand-in for TF Serving on this machine."""
    from _serving_stand_in import StandIn, export_tiny, write_pictures

    with tempfile.TemporaryDirectory() as folder:
        pictures = write_pictures(Path(folder))
        bad = Path(folder, "no_picture.jpg")
        bad.write_bytes(b"<html>")
        with StandIn(export_tiny(Path(folder, "vit")), "vit") as server:
            addresses = [("--rest", server.rest)]
            if server.grpc:
                addresses.append(("--grpc", server.grpc))
            for address in addresses:
                print(f"a stand-in for TF Serving, {address[0]}")
                options = parser.parse_args([*address, "--model", "vit"])
                if not ask(options, pictures) or ask(options, [*pictures, bad]):
                    return 1
                if ask(parser.parse_args([*address, "--model", "other"]), pictures):
                    return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", help="JPEG or PNG files")
    add_server_options(parser)
    parser.add_argument("--smoke", action="store_true", help="try it on a stand-in for the server")
    options = parser.parse_args()
    if options.smoke:
        return smoke(parser)
    if not options.pictures:
        parser.error("name some pictures")
    return 0 if ask(options, options.pictures) else 1


if __name__ == "__main__":
    sys.exit(main())
