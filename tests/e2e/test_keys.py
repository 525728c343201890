"""An InferenceKey on a real cluster: made by the command line, limited over both gateways, counted, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LIMIT = 4


def dormouse(cluster, *args):
    """Run a command of the command line; return what it printed."""
    command = [sys.executable, "-m", "dormouse_cli", *args]
    env = os.environ | ({"KUBECONFIG": cluster.kubeconfig} if cluster.kubeconfig else {})
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def asked(port, key, model):
    """Return status and headers of a completion over HTTP."""
    body = json.dumps({"model": model, "prompt": [5, 17, 42], "max_tokens": 4}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def test_a_key_holds_over_both_gateways_is_counted_and_ends(cluster, release, deployments, eventually):
    namespace, gateway = deployments.namespace, release.gateway.removeprefix("service/")
    cluster.kubectl("scale", f"deployment/{gateway}", "-n", release.namespace, "--replicas=2")
    cluster.kubectl("rollout", "status", f"deployment/{gateway}", "-n", release.namespace, "--timeout=120s")
    name = deployments.apply("keyed")
    deployments.wait(name, "condition=Ready", timeout_s=240)
    model = f"{namespace}/{name}"
    made = ("--model", name, "--requests-per-minute", str(LIMIT), "--tokens-per-day", "100000")
    key = dormouse(cluster, "keys", "create", "shop", "-n", namespace, *made).strip()
    eventually(lambda: cluster.get("infk", "shop", namespace).get("status", {}).get("state") == "Valid")
    labels = "app.kubernetes.io/component=gateway"
    pods = json.loads(cluster.kubectl("get", "pods", "-n", release.namespace, "-l", labels, "-o", "json"))["items"]
    assert len(pods) == 2
    with ExitStack() as stack:
        ports = [
            stack.enter_context(cluster.port_forward(f"pod/{pod['metadata']['name']}", 8000, release.namespace))
            for pod in pods
        ]
        for port in ports:
            eventually(lambda port=port: asked(port, "no such key", model)[0] == 200)  # it knows model and worker
        answers = [asked(ports[number % 2], key, model) for number in range(3 * LIMIT)]
        print(json.dumps([(status, headers) for status, headers in answers][:5], indent=1))
        assert [status for status, _ in answers].count(200) == LIMIT
        assert answers[0][1]["x-ratelimit-limit-requests"] == str(LIMIT)
        assert "retry-after" in answers[-1][1]
        used = dormouse(cluster, "usage", "-n", namespace)
        print(used)
        assert f"{namespace}/shop,{namespace},{model},{LIMIT},{3 * LIMIT},0,{4 * LIMIT}" in used
        eventually(lambda: cluster.get("infk", "shop", namespace)["status"].get("usage", {}).get("requests") == LIMIT)
        print(cluster.kubectl("get", "infk", "-n", namespace, "-o", "wide"))
        cluster.kubectl("delete", "infk", "shop", "-n", namespace)
        for port in ports:  # who is nobody's is anybody here, and has no limit any more
            eventually(lambda port=port: "x-ratelimit-limit-requests" not in asked(port, key, model)[1])
