"""How much a TF Serving server bears: `python benchmarks/serving_load.py --rest URL --model vit`.

Sends pictures to a server with a model that `keras-vit export --to saved_model` wrote, over REST or
gRPC, from several connections at once. Prints requests and pictures a second, how long an answer
takes (median, 95 and 99 percent of them), and how many failed; as JSON too. It stops after
`--requests` or `--seconds`, whichever comes first, and asks only this machine unless told
`--remote`. Exits with 1 if any request failed.

`--smoke` runs it against a stand-in for TF Serving, whose figures say nothing of the real one.
"""

from __future__ import annotations

import argparse
import ipaddress
import itertools
import json
import math
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _serving_stand_in import StandIn, export_tiny, write_pictures  # noqa: E402
from serving_client import ServingError, add_server_options, connect, read  # noqa: E402

PERCENTILES = (50, 95, 99)
MOST_REQUESTS, MOST_CONNECTIONS = 1_000_000, 256


def is_local(options) -> bool:
    """Whether the server is on this machine."""
    if options.grpc:
        host = urllib.parse.urlsplit(f"//{options.grpc}").hostname
    else:
        host = urllib.parse.urlsplit(options.rest or "http://localhost").hostname
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def measure(options, files: list[bytes]) -> dict:
    """Runs the requests; returns the figures."""
    numbers, lock = itertools.count(), threading.Lock()
    times: list[float] = []
    errors: Counter[str] = Counter()
    clock = {}

    def start_clock() -> None:
        clock["begin"] = time.perf_counter()

    # All begin together, after a first request each.
    barrier = threading.Barrier(options.concurrency, start_clock, options.timeout * 2)

    def batch(number: int) -> list[bytes]:
        first = number * options.batch
        return [files[(first + i) % len(files)] for i in range(options.batch)]

    def timed(client, number: int, start: float) -> None:
        try:
            client.predict(batch(number))
        except ServingError as error:
            with lock:
                errors[str(error)] += 1
            return
        with lock:
            times.append(time.perf_counter() - start)

    def work() -> None:
        client = None
        try:
            client = connect(options)
            client.predict(batch(0))
            barrier.wait()
            for number in numbers:  # a count is shared safely: its steps are atomic
                start = time.perf_counter()
                if number >= options.requests or start >= clock["begin"] + options.seconds:
                    return
                timed(client, number, start)
        except ServingError as error:
            with lock:
                errors[str(error)] += 1
            barrier.abort()
        except threading.BrokenBarrierError:
            return
        finally:
            if client is not None:
                client.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(options.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - clock.get("begin", math.nan)
    figures = {
        "server": options.grpc or options.rest or "http://localhost:8501",
        "protocol": "gRPC" if options.grpc else "REST",
        "concurrency": options.concurrency,
        "batch": options.batch,
        "answered": len(times),
        "failed": sum(errors.values()),
        "errors": dict(errors.most_common(5)),
        "seconds": round(wall, 3) if clock else 0.0,
        "requests_per_second": round(len(times) / wall, 2) if times else 0.0,
        "pictures_per_second": round(len(times) * options.batch / wall, 2) if times else 0.0,
    }
    for percent in PERCENTILES:
        figures[f"p{percent}_ms"] = round(percentile(times, percent) * 1000, 2) if times else None
    return figures


def show(figures: dict) -> None:
    print("| protocol | at once | batch | requests/s | pictures/s | p50 ms | p95 ms | p99 ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    keys = ("concurrency", "batch", "requests_per_second", "pictures_per_second")
    keys += tuple(f"p{percent}_ms" for percent in PERCENTILES)
    print(f"| {figures['protocol']} | " + " | ".join(str(figures[key]) for key in keys) + " |")
    print(f"\n{figures['answered']} answered, {figures['failed']} failed")
    for message, count in figures["errors"].items():
        print(f"  {count} x {message}")


def smoke(options) -> list[dict]:
    """Both protocols against a stand-in."""
    options.requests, options.concurrency, options.seconds = 12, 3, 30.0
    with tempfile.TemporaryDirectory() as folder:
        files = read(write_pictures(Path(folder)))
        with StandIn(export_tiny(Path(folder, "vit")), "vit") as server:
            print("against a stand-in: the figures say nothing of TF Serving\n")
            options.model, options.rest, options.grpc = "vit", server.rest, None
            found = [measure(options, files)]
            if server.grpc:
                options.rest, options.grpc = None, server.grpc
                found.append(measure(options, files))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures how much a TF Serving server bears.")
    add_server_options(parser)
    parser.add_argument("--requests", type=int, default=200, help="most requests (200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="most time (60)")
    parser.add_argument("--concurrency", type=int, default=4, help="connections at once (4)")
    parser.add_argument("--batch", type=int, default=1, help="pictures a request (1)")
    parser.add_argument("--pictures", nargs="+", help="files to send; else made ones, 500 x 375")
    parser.add_argument("--remote", action="store_true", help="the server may be elsewhere")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    parser.add_argument("--smoke", action="store_true", help="try it on a stand-in")
    options = parser.parse_args()
    for name, most in (
        ("requests", MOST_REQUESTS),
        ("concurrency", MOST_CONNECTIONS),
        ("batch", 1024),
    ):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name} must be 1 to {most}. Received: {getattr(options, name)}")
    if not 0 < options.seconds <= 3600:
        parser.error(f"--seconds must be above 0, and at most 3600. Received: {options.seconds}")
    if not options.smoke and not is_local(options) and not options.remote:
        parser.error("the server is not on this machine; if it is yours to load, add --remote")
    if options.smoke:
        found = smoke(options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            try:
                files = read(options.pictures or write_pictures(Path(folder), 8))
            except ServingError as error:
                parser.error(str(error))
        found = [measure(options, files)]
    for figures in found:
        show(figures)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    return int(any(figures["failed"] or not figures["answered"] for figures in found))


if __name__ == "__main__":
    sys.exit(main())
