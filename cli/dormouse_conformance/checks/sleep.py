"""Sleep and wake, in two phases each."""

from __future__ import annotations

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import require, require_equal, require_refusal, require_unavailable
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, agreed, told

INVALID, UNMET = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


def _counter(worker: Subject) -> None:
    before = worker.ready().request_counter
    for _ in range(2):
        worker.generate(worker.request(max_tokens=1))
    require_refusal(lambda: worker.generate(worker.request(temperature=-1.0)), INVALID, what="temperature -1")
    prepared = worker.command("PrepareSleep", level=_level(worker)).request_counter
    require_equal("request_counter after two more requests and a refused one", before + 2, prepared)


def _late(worker: Subject) -> None:
    counter = worker.ready().request_counter
    worker.generate(worker.request(max_tokens=1))
    require_refusal(
        lambda: worker.command("PrepareSleep", level=_level(worker), request_counter=counter),
        UNMET,
        what="PrepareSleep with an older request_counter",
    )
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _closed(worker: Subject) -> None:
    worker.ready()
    worker.command("PrepareSleep", level=_level(worker))
    require_unavailable(lambda: worker.generate(worker.request()), "Generate after PrepareSleep")


def _taken_back(worker: Subject) -> None:
    worker.ready()
    worker.command("PrepareSleep", level=_level(worker))
    worker.command("WakeUp")
    worker.generate(worker.request(max_tokens=1))


def _drain(worker: Subject) -> None:
    worker.ready()
    with worker.running() as stream:
        worker.command("PrepareSleep", level=_level(worker))
        answer = stream.rest()
    require_equal("the tokens of what ran", worker.long_tokens, len(answer.tokens()))


def _abort(worker: Subject) -> None:
    worker.ready()
    with worker.running() as stream:
        worker.command("PrepareSleep", level=_level(worker), mode=control.DRAIN_MODE_ABORT)
        answer = stream.rest()
    require_equal("finish reason of what ran", ["ABORT"], answer.reasons())


def _level_1(worker: Subject) -> None:
    _sleeps(worker, 1)


def _level_2(worker: Subject) -> None:
    _sleeps(worker, 2)


def _unserved(worker: Subject) -> None:
    worker.asleep()
    require_unavailable(lambda: worker.generate(worker.request()), "Generate asleep")


def _text(worker: Subject) -> None:
    worker.asleep()
    worker.ask("GetModel", pb.GetModelRequest())
    tokens = worker.ask("Tokenize", pb.TokenizeRequest(text="a dormouse sleeps")).token_ids
    require(tokens, "tokens of a text", "none")
    worker.ask("Detokenize", pb.DetokenizeRequest(token_ids=tokens))


def _again(worker: Subject) -> None:
    level = worker.asleep().sleep_level
    status = worker.command("Sleep", level=level)
    seen = (control.WorkerState.Name(status.state), status.sleep_level)
    require_equal("state and level", ("WORKER_STATE_ASLEEP", level), seen)


def _unknown_level(worker: Subject) -> None:
    worker.ready()
    require_refusal(lambda: worker.command("Sleep", level=4), INVALID, what="level 4")
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _unknown_tag(worker: Subject) -> None:
    worker.ready()
    call = lambda: worker.command("Sleep", level=_level(worker), tags=["dreams"])  # noqa: E731
    require_refusal(call, INVALID, what="tag dreams", naming=("dreams",))
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _reserve(worker: Subject) -> None:
    worker.asleep()
    worker.command("PrepareWakeUp")
    status = worker.status()
    require(status.state == control.WORKER_STATE_ASLEEP, "ASLEEP, until WakeUp", told(status))


def _wakes(worker: Subject) -> None:
    count = agreed(worker.ready().report) - 1
    worker.command("InitializeCache", num_gpu_blocks=count)
    worker.asleep()
    status = worker.command("WakeUp")
    require(status.state == control.WORKER_STATE_READY, "READY", told(status))
    require_equal("num_gpu_blocks and sleep_level", (count, 0), (status.num_gpu_blocks, status.sleep_level))


def _same(worker: Subject) -> None:
    worker.ready()
    request = worker.request(temperature=1.0, seed=3)
    before = worker.generate(request).tokens()
    worker.asleep()
    worker.command("WakeUp")
    require_equal("the tokens after a sleep", before, worker.generate(request).tokens())


def _awake(worker: Subject) -> None:
    worker.ready()
    with worker.running() as stream:
        status = worker.command("WakeUp")
        stream.first()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _standby(worker: Subject) -> None:
    count = worker.ready().num_gpu_blocks
    status = worker.command("Sleep", level=3)
    require(status.state == control.WORKER_STATE_STANDBY, "STANDBY", told(status))
    require_equal("num_gpu_blocks and sleep_level", (0, 3), (status.num_gpu_blocks, status.sleep_level))
    require_refusal(
        lambda: worker.command("InitializeCache", num_gpu_blocks=count), UNMET, what="InitializeCache in STANDBY"
    )


def _standby_tags(worker: Subject) -> None:
    worker.ready()
    require_refusal(
        lambda: worker.command("Sleep", level=3, tags=["kv_cache"]), INVALID, what="level 3 of a part", naming=("tags",)
    )
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _restart(worker: Subject) -> None:
    worker.ready()
    worker.command("Sleep", level=3)
    worker.command("WakeUp")
    report = worker.command("DetermineNumAvailableBlocks")
    status = worker.settled()
    require(status.state == control.WORKER_STATE_PROFILED, "PROFILED, until InitializeCache", told(status))
    status = worker.command("InitializeCache", num_gpu_blocks=agreed(report))
    require(status.state == control.WORKER_STATE_READY, "READY", told(status))


def _sleeps(worker: Subject, level: int) -> None:
    worker.ready()
    worker.command("PrepareSleep", level=level)
    worker.command("Sleep", level=level)
    status = worker.status()
    require(status.state == control.WORKER_STATE_ASLEEP, "ASLEEP", told(status))
    require_equal("num_gpu_blocks and sleep_level", (0, level), (status.num_gpu_blocks, status.sleep_level))


def _level(worker: Subject) -> int:
    """Return a level that the worker claims; 3 if it claims none of the others."""
    levels = {Capability.SLEEP_LEVEL_1: 1, Capability.SLEEP_LEVEL_2: 2}
    return next((level for name, level in levels.items() if name in worker.claims), 3)


SECTION = Section(
    "sleep",
    "`PrepareSleep` closes the worker and tells how many requests it has accepted; `Sleep` gives the memory back. "
    "`PrepareWakeUp` reserves the memory or tells the missing bytes; `WakeUp` takes it, verifies and "
    "opens. Levels: 1 keeps weights in host memory, 2 drops them, 3 ends the engine process (STANDBY).",
    (
        Rule(
            "counter", "`PrepareSleep` answers the requests accepted since the start; refused ones are not.", _counter
        ),
        Rule(
            "late",
            "With another `request_counter` than the worker's it is FAILED_PRECONDITION, and the worker stays open.",
            _late,
        ),
        Rule("closed", "After it no request is accepted.", _closed),
        Rule("taken-back", "`WakeUp` takes a prepared sleep back.", _taken_back),
        Rule("drain", "With mode DRAIN what runs is served to its end.", _drain),
        Rule("abort", "With mode ABORT what runs ends, with the finish reason ABORT.", _abort),
        Rule(
            "level-1",
            "After `Sleep` at level 1 the worker is ASLEEP at that level, with no blocks.",
            _level_1,
            Capability.SLEEP_LEVEL_1,
        ),
        Rule("level-2", "The same at level 2.", _level_2, Capability.SLEEP_LEVEL_2),
        Rule("unserved", "Asleep `Generate` is UNAVAILABLE, with RetryInfo.", _unserved),
        Rule("text", "Asleep `GetModel`, `Tokenize` and `Detokenize` work.", _text),
        Rule("again", "The same sleep again succeeds and changes nothing.", _again),
        Rule("level", "A level that there is not is INVALID_ARGUMENT and changes nothing.", _unknown_level),
        Rule("tag", "So is a tag that there is not.", _unknown_tag),
        Rule("reserve", "After `PrepareWakeUp` the worker is ASLEEP still.", _reserve),
        Rule("wakes", "After `WakeUp` it is READY with the blocks that it had.", _wakes),
        Rule("same", "It says the same tokens as before.", _same),
        Rule("awake", "`WakeUp` of a worker that serves succeeds and changes nothing.", _awake),
        Rule(
            "standby",
            "At level 3 the worker is STANDBY, holds nothing, and `InitializeCache` is FAILED_PRECONDITION.",
            _standby,
            Capability.STANDBY,
        ),
        Rule("standby-tags", "Level 3 of a part is INVALID_ARGUMENT.", _standby_tags, Capability.STANDBY),
        Rule(
            "restart",
            "`WakeUp` in STANDBY starts an engine, which loads, is PROFILED, and serves after `InitializeCache`.",
            _restart,
            Capability.STANDBY,
        ),
    ),
)
