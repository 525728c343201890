"""How calls are refused."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import require, require_equal, require_refusal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, told

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNABLE = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION, INVALID)


def _field(worker: Subject) -> None:
    worker.ready()
    require_refusal(
        lambda: worker.generate(worker.request(temperature=-3.0)),
        INVALID,
        what="temperature -3",
        naming=("temperature", "-3"),
    )


def _prompt(worker: Subject) -> None:
    worker.ready()
    require_refusal(lambda: worker.generate(pb.GenerateRequest()), INVALID, what="a request without a prompt")


def _vocabulary(worker: Subject) -> None:
    worker.ready()
    size = worker.model.vocab_size
    require_refusal(lambda: worker.generate(worker.request([size])), INVALID, what=f"token {size} of {size}")


def _long(worker: Subject) -> None:
    worker.ready()
    prompt = worker.prompt(worker.model.max_model_len + 1)
    refusal = require_refusal(
        lambda: worker.generate(worker.request(prompt)), INVALID, what="a prompt that is too long"
    )
    require_equal("ErrorInfo.reason", CONTEXT_LENGTH_EXCEEDED, refusal.reason)


def _model(worker: Subject) -> None:
    worker.ready()
    request = worker.request()
    request.model = "no-such-model"
    require_refusal(lambda: worker.generate(request), grpc.StatusCode.NOT_FOUND, what="another model's name")


def _task(worker: Subject) -> None:
    worker.ready()
    request = pb.EmbedRequest(inputs=[pb.EmbedInput(token_ids=pb.TokenIds(ids=worker.prompt()))])
    require_refusal(
        lambda: worker.ask("Embed", request),
        grpc.StatusCode.FAILED_PRECONDITION,
        what="Embed of a model that generates",
        naming=("Generate",),
    )


def _bytes(worker: Subject) -> None:
    worker.ready()
    require_refusal(
        lambda: worker.send_bytes(b"\xff" * 100), INVALID, grpc.StatusCode.INTERNAL, what="bytes that are no message"
    )
    worker.generate(worker.request(max_tokens=1))


def _unclaimed(worker: Subject) -> None:
    worker.ready()
    asked: dict[Capability, Callable[[], object]] = {
        Capability.SLEEP_LEVEL_1: lambda: worker.command("Sleep", level=1),
        Capability.SLEEP_LEVEL_2: lambda: worker.command("Sleep", level=2),
        Capability.STANDBY: lambda: worker.command("Sleep", level=3),
        Capability.RESUME: lambda: worker.generate(_resumed(worker), proof=worker.to_gateway),
    }
    for capability, call in asked.items():
        if capability not in worker.claims:
            require_refusal(call, *UNABLE, what=f"{capability}, which is not claimed")
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _resumed(worker: Subject) -> pb.GenerateRequest:
    request = worker.request()
    request.resume.output_token_ids.extend(worker.prompt(2))
    return request


SECTION = Section(
    "errors",
    "A status says who must act: INVALID_ARGUMENT the caller, UNAVAILABLE and RESOURCE_EXHAUSTED nobody, "
    "for a later try may succeed (RetryInfo says when), INTERNAL the worker's makers.",
    (
        Rule(
            "field", "What is out of its range is INVALID_ARGUMENT; the message names the field and the value.", _field
        ),
        Rule("prompt", "A request without a prompt is INVALID_ARGUMENT.", _prompt),
        Rule("vocabulary", "So is a token that the model does not have.", _vocabulary),
        Rule(
            "long",
            "So is a prompt that is longer than the model; `google.rpc.ErrorInfo` has the reason "
            "CONTEXT_LENGTH_EXCEEDED.",
            _long,
        ),
        Rule("model", "A name that is not the worker's is NOT_FOUND.", _model),
        Rule("task", "A method of another task is FAILED_PRECONDITION and names the one that is answered.", _task),
        Rule("bytes", "Bytes that are no message harm nobody but their sender.", _bytes),
        Rule(
            "unclaimed",
            "What a worker does not claim it refuses, with UNIMPLEMENTED, FAILED_PRECONDITION or INVALID_ARGUMENT, and "
            "nothing changes.",
            _unclaimed,
        ),
    ),
)
