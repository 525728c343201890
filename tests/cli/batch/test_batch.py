"""`dormouse batch`, as a user calls it: against a real gateway, and against servers that misbehave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse_cli.batch import files
from dormouse_cli.errors import CommandFailed
from dormouse_kube.api import SERVICES
from tests.cli import kit
from tests.cli.batch.server import CHAT, request
from tests.cli.test_cli import ENV, HEEDING_CTRL_C
from tests.cli.test_reach import gateway_pod
from tests.gateway.openai.in_thread import running_in_thread


@pytest.fixture
def write(tmp_path):
    """Write requests into a file."""

    def make(*requests, name="work.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in requests))
        return path

    return make


def answers(path):
    return {line["custom_id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="module")
def gateway():
    """The address of a real gateway over HTTP."""
    with running_in_thread() as base:
        yield base.removeprefix("http://")


def test_requests_of_each_door_are_answered_by_a_real_gateway(dormouse, gateway, write):
    file = write(
        request("chat"),
        request("response", "/v1/responses", input="hi", messages=None),
        request("message", "/v1/messages", max_tokens=5),
        {**request("text", "/v1/completions"), "body": {"model": "tiny", "prompt": "hi"}},
    )
    result = dormouse(kit.cluster(), "batch", str(file), "--address", gateway)
    assert result.exit_code == 1, result.stderr
    told = answers(file.with_name("work.answers.jsonl"))
    assert told["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello dormouse"
    assert told["message"]["response"]["body"]["content"][0]["text"] == "Hello dormouse"
    assert told["text"]["response"]["body"]["choices"][0]["text"] == "Hello dormouse"
    refused = told["response"]["response"]
    assert (refused["status_code"], refused["body"]["error"]["param"]) == (400, "messages"), "the door's own words"
    assert "1 of 4 requests failed" in result.stderr
    assert "asks them again" in result.stderr


def test_a_second_run_asks_only_what_is_not_answered(dormouse, server, write):
    file = write(*(request(name) for name in "abcd"))
    output = file.with_name("out.jsonl")
    server.script = [(400, {}, b'{"error": {}}')]
    command = ("batch", str(file), "-o", str(output), "--address", server.address, "--max-concurrency", "1")
    assert dormouse(kit.cluster(), *command).exit_code == 1
    with output.open("a") as torn:
        torn.write('{"custom_id": "a", "respo')
    server.seen.clear()
    again = dormouse(kit.cluster(), *command)
    assert again.exit_code == 0
    assert len(server.seen) == 1, "the one that was refused"
    assert "3 of 4 are answered; 1 are asked" in again.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == list("abcd")
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert dormouse(kit.cluster(), *command).exit_code == 0
    assert len(server.seen) == 1, "nothing is left"


def test_so_many_are_under_way_and_no_more_all_at_low_priority(dormouse, server, write):
    file = write(*(request(str(n)) for n in range(7)))
    server.together = 3
    command = ("batch", str(file), "--address", server.address, "--max-concurrency", "3")
    assert dormouse(kit.cluster(), *command).exit_code == 0
    assert server.most_in_flight == 3
    assert {body["priority"] for _, body, _ in server.seen} == {100}


def test_the_cluster_s_gateway_is_found_and_the_model_asked_by_its_full_name(dormouse, server, write):
    fake = kit.cluster(kit.deployment(), pods=(gateway_pod(),))
    service = {"metadata": {"name": "dormouse-gateway", "namespace": "dormouse"}, "spec": {"selector": {"app": "gw"}}}
    fake.put(SERVICES, service)
    fake.ports["gw-1"] = server.port
    file = write(request("a", model="gpt-4o"))
    assert dormouse(fake, "batch", str(file), "--model", "tiny", "--api-key", "sesame").exit_code == 0
    assert fake.forwards == [("dormouse/gw-1", 8000)]
    path, body, headers = server.seen[0]
    assert (path, body["model"], headers["Authorization"]) == (CHAT, "default/tiny", "Bearer sesame")
    file = write(request("a"), name="other.jsonl")
    assert dormouse(fake, "batch", str(file)).exit_code == 0, "the first request's model names the gateway"
    assert server.seen[1][1]["model"] == "tiny", "and bodies stay as they are"


def test_what_listens_on_this_machine_is_used_first(dormouse, server, write):
    fake = kit.cluster()
    assert dormouse(fake, "batch", str(write(request("a"))), http_here=server.address).exit_code == 0
    assert fake.forwards == []


def test_nothing_is_sent_of_a_file_with_wrong_lines(dormouse, server, write):
    file = write(request("a"), request("a"), {**request("b"), "method": "GET"})
    result = dormouse(kit.cluster(), "batch", str(file), "--address", server.address)
    assert result.exit_code == 2
    assert f"{file}:2: custom_id 'a' is already in line 1" in result.stderr
    assert f"{file}:3: method is" in result.stderr
    assert server.seen == []
    assert not file.with_name("work.answers.jsonl").exists()


def test_ten_wrong_lines_are_told_and_no_more(write):
    file = write(*(request("") for _ in range(12)))
    with pytest.raises(CommandFailed) as caught:
        files.check(file)
    assert len(str(caught.value).splitlines()) == 1 + files.MAX_TOLD


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "has no requests"), (b"\n \n", "has no requests"), (b"\xff\n", "cannot be read"), (None, "cannot be read")],
)
def test_a_file_without_requests_is_said_to_be_one(dormouse, tmp_path, content, words):
    file = tmp_path / "work.jsonl"
    if content is not None:
        file.write_bytes(content)
    result = dormouse(kit.cluster(), "batch", str(file), "--address", "127.0.0.1:1")
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_a_file_of_something_else_is_not_written_over(dormouse, server, write):
    file, other = write(request("a")), write({"custom_id": "z", "response": None, "error": None}, name="other.jsonl")
    for output, words in ((file, "is the file of the requests"), (other, "'z' is none of the requests'")):
        before = output.read_text()
        result = dormouse(kit.cluster(), "batch", str(file), "-o", str(output), "--address", server.address)
        assert (result.exit_code, words in result.stderr) == (2, True)
        assert output.read_text() == before
    assert [path.name for path in sorted(file.parent.iterdir())] == ["other.jsonl", "work.jsonl"]


def test_an_output_that_can_not_be_written_is_told(dormouse, server, write):
    output = write(request("a")).with_name("none") / "out.jsonl"
    command = ("batch", str(write(request("a"))), "-o", str(output), "--address", server.address)
    result = dormouse(kit.cluster(), *command)
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)


def test_a_disk_that_is_full_ends_the_run():
    with pytest.raises(CommandFailed, match="cannot be written"), files.appending(Path("/dev/full")) as out:
        out("a line\n")


def test_a_key_that_is_refused_is_told_before_anything_is_sent(dormouse, server, write):
    server.greets = 401
    result = dormouse(kit.cluster(), "batch", str(write(request("a"))), "--address", server.address)
    assert (result.exit_code, "refuses the API key" in result.stderr) == (1, True)
    assert server.seen == []


def test_nobody_at_the_address_is_told(dormouse, write):
    result = dormouse(kit.cluster(), "batch", str(write(request("a"))), "--address", "127.0.0.1:1")
    assert (result.exit_code, "nothing answers at 127.0.0.1:1" in result.stderr) == (1, True)


def test_ctrl_c_keeps_what_is_answered(server, write):
    file = write(request("a"), request("b"))
    output = file.with_name("work.answers.jsonl")
    command = [
        sys.executable,
        "-c",
        HEEDING_CTRL_C,
        "batch",
        str(file),
        "--address",
        server.address,
        "--max-concurrency",
        "1",
    ]
    server.stalls_from = 1
    with subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        with server.changed:
            assert server.changed.wait_for(lambda: len(server.seen) == 2, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
    assert list(answers(output)) == ["a"]


# --- one request ---
