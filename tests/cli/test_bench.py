"""`dormouse bench` against a gateway of its own, over real sockets, as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from io import StringIO

import grpc
import pytest
import yaml
from rich.console import Console

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_cli.load.order import progress
from dormouse_kube.api import SERVICES
from tests.cli import kit
from tests.cli.test_cli import ENV, HEEDING_CTRL_C
from tests.cli.test_reach import gateway_pod

TOKENS = 3
SMALL = ("--num-prompts", "6", "--random-input-len", "5", "--random-output-len", "3", "--warmups", "2")


class Gateway(rpc.InferenceServicer):
    """Answers three tokens, in two messages; fails or stalls the requests that it is told, by their number."""

    def __init__(self):
        self.requests = []
        self.failing = {}
        self.stalls_from = 1_000_000
        self.in_flight = self.most_in_flight = 0
        self.together = 0  # answers wait until so many are under way
        self.changed = threading.Condition()

    def GetModel(self, request, context):  # noqa: ARG002, N802  # the names on the wire
        return pb.GetModelResponse(name=request.model, vocab_size=50, eos_token_ids=[0, 49], max_model_len=64)

    def Generate(self, request, context):  # noqa: N802  # the name on the wire
        with self.changed:
            number = len(self.requests)
            self.requests.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most_in_flight >= self.together, timeout=90)
        try:
            if number in self.failing:
                context.abort_with_status(to_grpc_status(self.failing[number]))
            yield pb.GenerateResponse(text="a", token_ids=[7])
            if number >= self.stalls_from:
                ended = threading.Event()
                context.add_callback(ended.set)
                ended.wait(30)
            usage = pb.Usage(prompt_tokens=len(request.token_ids.ids), completion_tokens=TOKENS)
            yield pb.GenerateResponse(text="b", token_ids=[8, 9], usage=usage, finish_reason=pb.FINISH_REASON_LENGTH)
        finally:
            with self.changed:
                self.in_flight -= 1
                self.changed.notify_all()


@pytest.fixture
def gateway():
    servicer = Gateway()
    with kit.serving(servicer, num_threads=16) as servicer.port:
        servicer.address = f"127.0.0.1:{servicer.port}"
        yield servicer


@pytest.fixture
def bench(dormouse, gateway):
    """Run the command against the gateway."""

    def run(*more):
        return dormouse(kit.cluster(), "bench", "--model", "tiny", "--address", gateway.address, *SMALL, *more)

    return run


def test_a_run_is_told_as_lines_in_a_pipe(bench, gateway):
    result = bench()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    known = {line[0]: line[1:] for line in lines}
    assert (known["completed"], known["failed"], known["not sent"]) == (["6"], ["0"], ["0"])
    assert known[""] == ["mean", "median", "p50", "p90", "p99"]
    assert all(float(value) >= 0 for name in ("TTFT", "TPOT", "ITL", "E2EL") for value in known[f"{name} (ms)"])
    assert len(gateway.requests) == 2 + 6, "warm-ups are sent, too, and count for nothing"


def test_requests_are_as_long_as_asked_for_and_the_same_for_the_same_seed(bench, gateway):
    bench("--ignore-eos", "--seed", "3")
    first = sorted(tuple(request.token_ids.ids) for request in gateway.requests)
    assert {len(ids) for ids in first} == {5}
    assert gateway.requests[0].sampling_params == pb.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    gateway.requests.clear()
    bench("--seed", "3", "--request-rate", "200")
    assert sorted(tuple(request.token_ids.ids) for request in gateway.requests) == first


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_every_figure(bench, form, read):
    told = read(bench("-o", form, "--goodput", "ttft:60000 tpot:60000", "--metric-percentiles", "99").stdout)
    assert (told["model"], told["num_prompts"], told["request_rate"], told["seed"]) == ("tiny", 6, "inf", 0)
    assert (told["completed"], told["total_input_tokens"], told["total_output_tokens"]) == (6, 30, 6 * TOKENS)
    assert told["request_goodput"] == told["request_throughput"] > 0
    assert told["goodput_limits_ms"] == {"ttft": 60000, "tpot": 60000}
    assert {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "itl")} <= set(told)
    assert {"mean_late_ms", "p99_held_back_ms", "median_loop_lag_ms"} <= set(told["client"])


def test_all_are_under_way_at_once_without_a_limit(bench, gateway):
    gateway.together = 6
    assert bench("--warmups", "0").exit_code == 0
    assert gateway.most_in_flight == 6


def test_no_more_than_the_limit_are_under_way_and_what_waits_does_not_count_as_the_servers(bench, gateway):
    told = json.loads(bench("--max-concurrency", "1", "--metric-percentiles", "100", "-o", "json").stdout)
    assert (told["completed"], gateway.most_in_flight) == (6, 1)
    others_ms = 6 * told["mean_e2el_ms"] - told["p100_e2el_ms"]  # at the least: the last one waits for all others
    assert told["client"]["p100_late_ms"] + told["client"]["p100_held_back_ms"] >= others_ms > 0


def test_errors_are_counted_by_code_and_the_run_goes_on(bench, gateway):
    asleep = CallError(grpc.StatusCode.UNAVAILABLE, "tiny is asleep", 30.0)
    gateway.failing = {2: asleep, 3: asleep, 4: CallError(grpc.StatusCode.INTERNAL, "id 7")}
    result = bench("-o", "json")
    told = json.loads(result.stdout)
    assert (told["completed"], told["failed"], told["errors"]) == (3, 3, {"INTERNAL": 1, "UNAVAILABLE": 2})
    assert result.exit_code == 1
    assert result.stderr.startswith("error: 3 of 6 requests failed: ")
    assert {"INTERNAL: id 7", "UNAVAILABLE: tiny is asleep"} <= set(
        result.stderr.strip().removeprefix("error: 3 of 6 requests failed: ").split("; ")
    )


def test_a_warm_up_that_fails_ends_it_before_the_load(bench, gateway):
    gateway.failing = {0: CallError(grpc.StatusCode.NOT_FOUND, "no model tiny")}
    result = bench()
    assert (result.exit_code, result.stdout, len(gateway.requests)) == (1, "", 1)
    assert result.stderr == "error: NOT_FOUND: no model tiny\n"


def test_a_time_limit_is_each_requests_own(bench, gateway):
    gateway.stalls_from = 7
    told = json.loads(bench("--timeout", "3", "-o", "json").stdout)
    assert set(told["errors"]) == {"DEADLINE_EXCEEDED"}
    assert told["completed"] + told["failed"] == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--random-input-len", "62"), "--random-input-len 62 and --random-output-len 3 make 65 tokens"),
        (("--goodput", "speed:1"), "--goodput is 'speed:1'"),
        (("--request-rate", "0"), "0.0 is out of range"),
        (("--request-rate", "nan"), "nan is out of range"),
        (("--max-concurrency", "1001"), "less than or equal to 1000"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--metric-percentiles", "200"), "--metric-percentiles is '200'"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_sent(bench, gateway, options, words):
    result = bench(*options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert gateway.requests == []


def test_without_an_address_the_clusters_gateway_is_loaded(dormouse, gateway):
    fake = kit.cluster(kit.deployment(), pods=(gateway_pod(),))
    service = {"metadata": {"name": "dormouse-gateway", "namespace": "dormouse"}, "spec": {"selector": {"app": "gw"}}}
    fake.put(SERVICES, service)
    fake.ports["gw-1"] = gateway.port
    assert dormouse(fake, "bench", "--model", "tiny", *SMALL).exit_code == 0
    assert {request.model for request in gateway.requests} == {"default/tiny"}


def test_nobody_at_the_address_is_said(dormouse):
    result = dormouse(kit.cluster(), "bench", "--model", "tiny", "--address", "127.0.0.1:1")
    assert (result.exit_code, result.stderr.startswith("error: nothing answers at 127.0.0.1:1: ")) == (1, True)


def test_ctrl_c_tells_what_there_is_so_far(gateway):
    """Sent to a real process whose third answer of six stalls; the others wait for it."""
    gateway.stalls_from = 4
    options = ("--max-concurrency", "1", "--model", "tiny", "--address", gateway.address, *SMALL, "-o", "json")
    command = [sys.executable, "-c", HEEDING_CTRL_C, "bench", *options]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with gateway.changed:
            assert gateway.changed.wait_for(lambda: len(gateway.requests) == 5, timeout=60)
        process.send_signal(signal.SIGINT)
        shown, remarks = process.communicate(timeout=90)
    told = json.loads(shown)
    assert process.returncode == 130, remarks
    assert told["interrupted"]
    assert [told[name] for name in ("completed", "unfinished", "not_sent", "failed")] == [2, 1, 3, 0]
    assert b"Traceback" not in remarks


def test_progress_is_for_terminals_only():
    shown = {}
    for is_terminal in (True, False):
        console = Console(file=StringIO(), force_terminal=is_terminal, width=80, color_system=None)
        with progress(console, 2) as on_end:
            on_end(None)
        shown[is_terminal] = console.file.getvalue()
    assert "1/2" in shown[True]
    assert shown[False] == ""
