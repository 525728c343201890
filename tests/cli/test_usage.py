"""`dormouse usage` and `dormouse cost`: from what gateways tell, and from a Prometheus."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from dormouse_api.v1.inference_pb2 import Usage
from dormouse_gateway.telemetry.metrics import Metrics
from dormouse_kube.api import PODS
from dormouse_kube.reflector import ObjectKey
from tests.cli import kit

LABELS = {"app.kubernetes.io/name": "dormouse", "app.kubernetes.io/component": "gateway"}


def gateways(*scrapes):
    fake = kit.cluster()
    for number, text in enumerate(scrapes):
        fake.put(PODS, {"metadata": {"namespace": "system", "name": f"g{number}", "labels": LABELS}})
        fake.scrapes[f"g{number}"] = text
    return fake


def scrape(*uses, **limits):
    metrics = Metrics(**limits)
    for key, namespace, name, usage in uses:
        metrics.used(key, ObjectKey(namespace, name), usage)
    return metrics.text().decode()


@contextmanager
def prometheus(answers):
    """Serve these answers, by the beginning of the expression; give the address and what was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            (expression,) = parse_qs(urlsplit(self.path).query)["query"]
            asked.append(expression)
            found = next(value for begin, value in answers.items() if begin in expression)
            result = [{"metric": labels, "value": [0, str(number)]} for labels, number in found]
            body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args):
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_usage_is_the_sum_over_all_gateways_of_the_namespace(dormouse):
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5)
    first = scrape(("team/a", "team", "tiny", usage), ("", "team", "tiny", usage), ("x", "other", "big", usage))
    fake = gateways(first, scrape(("team/a", "team", "tiny", usage)))
    assert dormouse(fake, "usage", "-n", "team").stdout.splitlines() == [
        "key,namespace,model,requests,prompt_tokens,cached_tokens,completion_tokens",
        ",team,team/tiny,1,10,4,5",
        "team/a,team,team/tiny,2,20,8,10",
    ]
    assert len(dormouse(fake, "usage", "-A").stdout.splitlines()) == 4


def test_usage_of_a_time_comes_from_prometheus(dormouse):
    whose = {"key": "team/a", "namespace": "team", "model": "team/tiny"}
    tokens = [({**whose, "part": "prompt"}, 99.6), ({**whose, "part": "completion"}, "NaN")]
    with prometheus({"requests_total": [(whose, 7)], "tokens_total": tokens}) as (address, asked):
        result = dormouse(kit.cluster(), "usage", "-A", "--prometheus", address, "--since", "7d")
    assert result.stdout.splitlines()[1:] == ["team/a,team,team/tiny,7,100,0,0"]
    assert "increase(dormouse_usage_requests_total[7d])" in asked[0]


@pytest.mark.parametrize(
    ("address", "words"), [("file:///etc/passwd", "allowed are addresses"), ("http://127.0.0.1:1", "does not answer")]
)
def test_a_prometheus_that_is_none_is_said(dormouse, address, words):
    result = dormouse(kit.cluster(), "usage", "--prometheus", address)
    assert (result.exit_code, words in result.stderr) == (1, True)


def test_a_cluster_without_gateways_is_said(dormouse):
    assert "no gateway runs" in dormouse(kit.cluster(), "usage").stderr


def test_beyond_some_keys_all_others_are_one():
    text = scrape(*((name, "team", "tiny", Usage()) for name in "abcd"), max_users=2)
    assert [name for name in ("a", "b", "c", "other") if f'key="{name}"' in text] == ["a", "b", "other"]


def deployment(name, **spec):
    made = kit.deployment(name, "team")
    made["spec"] = {"model": {"uri": "file:///m"}, "replicas": 1, **spec}
    return made


@pytest.mark.parametrize(
    ("spec", "flags", "line"),
    [
        ({}, [], "team,m,1,2.00,5.00,3.00,14.00,20.00,6.00"),
        ({}, ["--asleep-gpu-hour", "1"], "team,m,1,2.00,5.00,3.00,9.00,20.00,11.00"),
        ({"gpu": {"pool": {"name": "p"}}}, [], "team,m,1,2.00,5.00,3.00,4.00,20.00,16.00"),
        ({"parallelism": {"tensor": 2}}, [], "team,m,2,4.00,10.00,6.00,28.00,40.00,12.00"),
        ({"engine": {"device": "cpu"}}, [], "team,m,0,0.00,0.00,0.00,0.00,0.00,0.00"),
    ],
)
def test_cost_is_by_hours_awake_asleep_and_at_zero(dormouse, spec, flags, line):
    labels = {"namespace": "team", "deployment": "m"}
    states = {"active": 1.5, "waking": 0.5, "asleep": 5.0, "pending": 0.0}
    seconds = [({**labels, "state": state}, hours * 3600) for state, hours in states.items()]
    answers = {"dormouse_replicas": seconds, "dormouse_deployment_ready": [(labels, 36_000)]}
    with prometheus(answers) as (address, asked):
        prices = ["--prometheus", address, "--gpu-hour", "2", *flags]
        result = dormouse(kit.cluster(deployment("m", **spec)), "cost", "-n", "team", *prices)
    assert result.stdout.splitlines()[1:] == [line]
    assert "[30d:60s]" in asked[0]
