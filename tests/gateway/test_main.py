"""The program as a process: how it starts, why it does not, how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "away",
    "contexts": [{"name": "away", "context": {"cluster": "away", "user": "me"}}],
    "clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {}}],
}


@pytest.fixture
def start(tmp_path):
    """Start the gateway with a kubeconfig whose API server is away; end it with the test."""
    (tmp_path / "config").write_text(json.dumps(CONFIG))
    started = []

    def run(*flags, **env):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("DORMOUSE_", "KUBE"))}
        ports = dict.fromkeys(
            ("DORMOUSE_PORT", "DORMOUSE_CONTROL_PORT", "DORMOUSE_METRICS_PORT", "DORMOUSE_HTTP_PORT"), "0"
        )
        ours = {"KUBECONFIG": str(tmp_path / "config"), "DORMOUSE_HOST": "127.0.0.1", "PYTHONPATH": ":".join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "dormouse_gateway", *flags],
            env=plain | ports | ours | {"DORMOUSE_LAME_DUCK": "0"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_without_the_api_server_it_waits_and_sigterm_ends_it_with_0(start):
    process = start()
    for line in process.stderr:
        if "listening" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log


def test_the_threads_of_grpc_take_no_processor_from_the_event_loop_that_they_wake(start):
    process = start()
    for line in process.stderr:
        if "listening" in line:
            break
    threads = sorted(int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir())
    main, *others = map(os.sched_getscheduler, threads)
    assert (main, os.SCHED_BATCH in others) == (os.sched_getscheduler(0), True)


@pytest.mark.parametrize(
    ("flag", "named"),
    [("--router-policy=mine", "no router policy is called 'mine'"), ("--affinity-bound=0", "AFFINITY_BOUND is '0'")],
)
def test_a_flag_goes_before_its_variable(start, flag, named):
    process = start(flag, DORMOUSE_ROUTER_POLICY="round-robin", DORMOUSE_AFFINITY_BOUND="2")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2, log
    assert named in log


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"DORMOUSE_PORT": "many"}, "DORMOUSE_PORT is 'many'"),
        ({"DORMOUSE_TOKENS_DIR": "/nowhere"}, "gateway-seed"),
        ({"DORMOUSE_API_KEYS_DIR": "/nowhere"}, "/nowhere"),
        ({"DORMOUSE_TLS_CERT_FILE": "/nowhere", "DORMOUSE_TLS_KEY_FILE": "/nowhere"}, "DORMOUSE_TLS_CERT_FILE"),
        ({"KUBECONFIG": "/nowhere"}, "no credentials"),
        ({"DORMOUSE_HOST": "256.0.0.1"}, "256.0.0.1"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_one_line(start, env, named):
    process = start(**env)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2, log
    last = log.strip().splitlines()[-1]
    assert last.startswith("dormouse-gateway cannot run: ")
    assert named in last
    assert "Traceback" not in log
