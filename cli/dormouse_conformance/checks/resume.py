"""A stream that another worker began."""

from __future__ import annotations

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_conformance.findings import require_equal, require_refusal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.streams import Answer
from dormouse_conformance.subject import Subject

TOKENS = 12


def _rest(worker: Subject) -> None:
    _compare(worker, worker.request(max_tokens=TOKENS))


def _sampled(worker: Subject) -> None:
    _compare(worker, worker.request(max_tokens=TOKENS, temperature=1.0, seed=21))


def _count(worker: Subject) -> None:
    worker.ready()
    request = worker.request(max_tokens=TOKENS)
    whole = worker.generate(request)
    rest = _resumed(worker, request, whole.tokens()[:5])
    first = next(message for message in rest.messages if message.token_ids)
    require_equal("completion_tokens with the first new tokens", 5 + len(first.token_ids), first.completion_tokens)
    require_equal("usage.completion_tokens", TOKENS, rest.usage.completion_tokens)


def _text(worker: Subject) -> None:
    worker.ready()
    request = worker.request(max_tokens=TOKENS)
    whole = worker.generate(request)
    told = "".join(message.text for message in whole.messages if message.completion_tokens <= 6)
    rest = _resumed(worker, request, whole.tokens()[:6], len(told.encode()))
    require_equal("the text after what the client has", whole.text()[len(told) :], rest.text())


def _role(worker: Subject) -> None:
    worker.ready()
    request = _request(worker.request(), worker.prompt(2))
    require_refusal(
        lambda: worker.generate(request),
        grpc.StatusCode.INVALID_ARGUMENT,
        what="resume by a client",
        naming=("resume",),
    )


def _adapter(worker: Subject) -> None:
    worker.ready()
    request = _request(worker.request(), worker.prompt(2))
    request.resume.adapter_digest = "sha256:another"
    require_refusal(
        lambda: worker.generate(request, proof=worker.to_gateway),
        grpc.StatusCode.UNAVAILABLE,
        what="resume of an answer by an adapter that the name does not mean",
    )


def _compare(worker: Subject, request: pb.GenerateRequest) -> None:
    """Require that an answer goes on as it would have, after its first, a middle and its last but one token."""
    worker.ready()
    tokens = worker.generate(request).tokens()
    for known in (1, TOKENS // 2, TOKENS - 1):
        rest = _resumed(worker, request, tokens[:known])
        require_equal(f"the tokens after {known} of {TOKENS}", tokens[known:], rest.tokens())


def _resumed(worker: Subject, request: pb.GenerateRequest, known: list[int], num_bytes: int = 0) -> Answer:
    return worker.generate(_request(request, known, num_bytes), proof=worker.to_gateway)


def _request(request: pb.GenerateRequest, known: list[int], num_bytes: int = 0) -> pb.GenerateRequest:
    resumed = pb.GenerateRequest()
    resumed.CopyFrom(request)
    resumed.resume.output_token_ids.extend(known)
    resumed.resume.emitted_utf8_bytes = num_bytes
    return resumed


_CLAIM = Capability.RESUME
SECTION = Section(
    "resume",
    "A gateway whose worker is lost or must go asks another worker of the same model for the rest: the "
    "request with the tokens that there were and the number of bytes of text that its client has.",
    (
        Rule("rest", "The answer is the rest, with no token again and none left out.", _rest, _CLAIM),
        Rule("sampled", "So it is at any temperature, with the request's seed.", _sampled, _CLAIM),
        Rule("count", "Resumed tokens count: in `completion_tokens`, in `usage` and for `max_tokens`.", _count, _CLAIM),
        Rule("text", "Text begins behind the bytes that the client has.", _text, _CLAIM),
        Rule("role", "Only gateways may resume: from others it is INVALID_ARGUMENT.", _role, _CLAIM),
        Rule(
            "adapter",
            "Where the model's name means another adapter than `adapter_digest` it is UNAVAILABLE.",
            _adapter,
            _CLAIM,
        ),
    ),
)
