"""Envoy as a pod, from a file of the host's, and clients that ask through it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any
from urllib.error import URLError

from bench.envoy.process import BINARY
from tools.release import worker_image

PORT = 8080
_CLIENTS, _LOOK_S = 2, 0.05


def envoy_pod(
    name: str, config: str, *, flags: Sequence[str] = (), labels: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a pod of this configuration, which listens at PORT, and what it mounts; flags may use $(IP)."""
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"envoy.yaml": config}}
    container = {
        "name": "envoy",
        "image": worker_image(),  # for its C library
        "command": ["/programs/envoy", "-c", "/config/envoy.yaml", "--concurrency", "1", *flags],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "programs", "mountPath": "/programs", "readOnly": True},
            {"name": "config", "mountPath": "/config"},
        ],
    }
    volumes = [
        {"name": "programs", "hostPath": {"path": str(BINARY.resolve().parent)}},
        {"name": "config", "configMap": {"name": name}},
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}


def ask(url: str, model: str) -> str:
    """Ask for a token; return "200", another status, or why there is none."""
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
            return str(answer.status)
    except (URLError, OSError) as error:
        return str(error)


@contextmanager
def asked_meanwhile(url: str, model: str) -> Iterator[list[str]]:
    """Have clients ask all the time while the block runs; their answers are in the list when it has ended."""
    is_over, answers = Event(), list[str]()
    with ThreadPoolExecutor(_CLIENTS) as clients:
        asked = [clients.submit(_ask_until, is_over, url, model) for _ in range(_CLIENTS)]
        try:
            yield answers
        finally:
            is_over.set()
    answers += [answer for each in asked for answer in each.result()]


def _ask_until(is_over: Event, url: str, model: str) -> list[str]:
    answers = []
    while not is_over.is_set():
        answers.append(ask(url, model))
        time.sleep(_LOOK_S)
    return answers
