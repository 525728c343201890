"""kill -9 in each phase of an adapter's load: the base serves, the adapter is loaded again, no answer is mixed.

Adapters come of a hub on this machine, so that the program that fetches is one of the phases.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from tests.integration.adapter_phases import DIE, FRAIL, PHASES, STOP, STOPPED
from tests.integration.conftest import EPOCH, PATIENCE_S, is_engine
from tests.integration.crawling import own_copy
from tests.peft_kit import LOUD, greedy_tokens, make_adapter
from tests.waiting import wait_for
from tests.worker.hub_server import HubServer

pytestmark = pytest.mark.timeout(300)

PROMPT, MAX_TOKENS = [42, 7, 7, 300], 12
LOADED, FAILED = control.LORA_STATE_LOADED, control.LORA_STATE_FAILED
URI = "hf://org/tiny"
LORA = ("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", "8")
NO_HISTORY = ("--engine-restart-window", "0")  # each death is the first: no test waits for another's


def peft_answers(model, adapter):
    """Return what peft says without the adapter and with it."""
    base, adapted = (greedy_tokens(model, path, PROMPT, MAX_TOKENS) for path in (None, adapter))
    assert base != adapted
    return {"tiny": base, "sql": adapted}


@pytest.fixture(scope="module")
def adapter(tiny_model, tmp_path_factory):
    return make_adapter(tmp_path_factory.mktemp("adapter") / "sql", tiny_model, rank=8, loudness=LOUD)


@pytest.fixture(scope="module")
def expected(tiny_model, adapter):
    return peft_answers(tiny_model, adapter)


@pytest.fixture(scope="module")
def hub(adapter):
    with HubServer() as server:
        server.state.files = {name: (adapter / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
        yield server


@pytest.fixture(scope="module")
def start(start_worker, tiny_model, hub):
    """Start workers that take orders from a folder of their own; it has their caches, too."""

    def started(folder: Path, cache: Path):
        model = folder if folder.exists() else own_copy(tiny_model, folder)
        prefix = ("env", f"HF_ENDPOINT={hub.endpoint}")
        worker = start_worker(model, *LORA, *NO_HISTORY, *FRAIL, "--lora-cache", str(cache), prefix=prefix)
        worker.start()
        return worker

    return started


@pytest.fixture(scope="module")
def worker(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    return start(folder / "model", folder / "cache")


def want(worker, *names, source=URI):
    told = [control.LoraSpec(name=name, uri=source) for name in names]
    worker.operate("SetLoras", control.SetLorasRequest(epoch=EPOCH, adapters=told, digest=str(names)))


def told_of(worker):
    (told,) = worker.operate("ListLoras", control.ListLorasRequest()).adapters
    return told


def state(worker):
    return told_of(worker).state


def ask(worker, model, *, max_tokens=MAX_TOKENS):
    params = pb.SamplingParams(max_tokens=max_tokens, temperature=0)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT), sampling_params=params, model=model)
    return worker.inference.Generate(request, timeout=PATIENCE_S)


def tokens(call):
    return [token for message in call for token in message.token_ids]


def end_of(call):
    """Return what came of a stream, and with which status it broke off, None if it did not."""
    said = []
    try:
        for message in call:
            said += message.token_ids
    except grpc.RpcError as error:
        return said, error.code()
    return said, None


def check_answers(worker, expected):
    wait_for(lambda: state(worker) == LOADED, "the adapter is not loaded again")
    for model, said in expected.items():
        assert tokens(ask(worker, model)) == said, model


def await_end(pidfd):
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "a process of the dead front lives on"
    os.close(pidfd)


def start_again(worker, killed):
    """Open the engine that replaces one that was killed."""
    wait_for(lambda: worker.engines(1) != [killed], "nobody replaced the engine")
    worker.start()


@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_killed_while_it_loads_an_adapter_is_replaced_and_loads_it_again(worker, expected, phase):
    (worker.model / DIE).write_text(phase)
    engine = worker.engine()
    ended = os.pidfd_open(engine)
    want(worker, "sql")
    if phase == PHASES[-1]:
        wait_for(lambda: state(worker) == LOADED, "it is not loaded")
        assert end_of(ask(worker, "sql")) == ([], grpc.StatusCode.UNAVAILABLE)
    assert select.select([ended], [], [], PATIENCE_S)[0], f"no load came to {phase}"
    os.close(ended)
    start_again(worker, engine)
    assert tokens(ask(worker, "tiny")) == expected["tiny"]
    check_answers(worker, expected)
    want(worker)


def test_storage_that_does_not_answer_keeps_nobody_but_who_waits_for_the_adapter(worker, expected):
    (worker.model / STOP).write_text("matrices")
    want(worker, "sql")
    wait_for((worker.model / STOPPED).exists, lambda: f"no load came to it: {told_of(worker)}")
    assert tokens(ask(worker, "tiny")) == expected["tiny"]
    assert state(worker) not in (LOADED, FAILED)
    engine = worker.engine()
    os.kill(engine, signal.SIGKILL)
    start_again(worker, engine)
    check_answers(worker, expected)
    want(worker)


def test_an_engine_killed_while_an_answer_of_an_adapter_runs_mixes_nothing(worker, expected):
    want(worker, "sql")
    check_answers(worker, expected)
    long = tokens(ask(worker, "sql", max_tokens=400))
    call = ask(worker, "sql", max_tokens=400)
    said = list(next(call).token_ids)
    (engine,) = worker.engines(1)
    os.kill(engine, signal.SIGKILL)
    rest, _ = end_of(call)  # it may have been at its end
    assert [*said, *rest] == long[: len(said) + len(rest)]
    start_again(worker, engine)
    check_answers(worker, expected)
    want(worker)


def test_a_killed_program_that_fetches_is_a_failure_that_is_tried_again(start, hub, expected, tmp_path):
    hub.state.stall_after[WEIGHTS_FILE] = 1000
    hub.state.stalled.clear()
    worker = start(tmp_path / "model", tmp_path / "cache")
    want(worker, "sql")
    assert hub.state.stalled.wait(PATIENCE_S)
    (fetcher,) = (pid for pid in worker.children() if not is_engine(pid))
    os.kill(fetcher, signal.SIGKILL)
    wait_for(lambda: state(worker) == FAILED, "nobody noticed")
    assert tokens(ask(worker, "tiny")) == expected["tiny"]
    hub.state.stall_after.clear()
    want(worker)
    want(worker, "sql")
    check_answers(worker, expected)
    worker.close()


@pytest.mark.parametrize("phase", ["fetch", pytest.param("matrices", marks=pytest.mark.slow)])
def test_a_front_killed_while_an_adapter_is_loaded_leaves_nothing_that_the_next_one_minds(
    start, hub, expected, tmp_path, phase
):
    first = start(tmp_path / "model", tmp_path / "cache")
    if phase == "fetch":
        hub.state.stall_after[WEIGHTS_FILE] = 1000
        hub.state.stalled.clear()
    else:
        (first.model / STOP).write_text(phase)
    want(first, "sql")
    if phase == "fetch":
        assert hub.state.stalled.wait(PATIENCE_S)
    else:
        wait_for((first.model / STOPPED).exists, lambda: f"no load came to {phase}: {told_of(first)}")
    children = [os.pidfd_open(child) for child in first.children()]
    first.process.kill()
    first.process.wait()
    for child in children:
        await_end(child)
    hub.state.stall_after.clear()
    second = start(first.model, tmp_path / "cache")
    want(second, "sql")
    check_answers(second, expected)
    second.close()
