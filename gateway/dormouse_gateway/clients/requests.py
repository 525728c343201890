"""What the gateway reads, refuses and changes in a request. Pure: bytes in, bytes or a CallError out."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dormouse_api.image_wire import excess
from dormouse_api.images import BadImage, check_chat_images
from dormouse_api.limits import MAX_AUDIO_BYTES, MAX_REQUEST_ID_CHARS
from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.salts import Salts

HTTP_PEER = "http:"  # how the address of a peer begins that came over HTTP; gRPC's begin with ipv4: and the like
MAX_MODEL_CHARS = 256  # longer than any name that the custom resource allows

Whole = pb.EmbedRequest | pb.ClassifyRequest | pb.ScoreRequest | pb.DecideRequest  # answered whole or not at all
Named = pb.GenerateRequest | pb.TranscribeRequest | Whole  # that have an id of their own
Request = Named | pb.TokenizeRequest | pb.DetokenizeRequest | pb.GetModelRequest
WithImages = pb.GenerateRequest | pb.TokenizeRequest  # that may have some
Metadata = tuple[tuple[str, str | bytes], ...]

FORWARDED = frozenset({"traceparent", "tracestate"})  # all that a client says to workers beside its message


@dataclass(frozen=True, slots=True)
class Method:
    """One method that is routed."""

    name: str
    request: type[Request]
    need_ready: bool  # False: workers answer it while asleep, too

    @property
    def path(self) -> str:
        """Return the method's path on the wire."""
        return f"/dormouse.v1.Inference/{self.name}"


GENERATE = Method("Generate", pb.GenerateRequest, need_ready=True)
METHODS = (
    GENERATE,
    Method("Tokenize", pb.TokenizeRequest, need_ready=False),
    Method("Detokenize", pb.DetokenizeRequest, need_ready=False),
    Method("GetModel", pb.GetModelRequest, need_ready=False),
    Method("Embed", pb.EmbedRequest, need_ready=True),
    Method("Classify", pb.ClassifyRequest, need_ready=True),
    Method("Score", pb.ScoreRequest, need_ready=True),
    Method("Decide", pb.DecideRequest, need_ready=True),
    Method("Transcribe", pb.TranscribeRequest, need_ready=True),
)


def parse(method: Method, raw: bytes | None) -> Request:
    """Parse the request and check what the gateway itself relies on. Raises CallError INVALID_ARGUMENT.

    Fields that this gateway does not know are dropped: what nobody has looked at here must not reach a newer worker.
    """
    if raw is None:
        words = f"{method.name} takes one dormouse.v1.{method.request.DESCRIPTOR.name}"
        raise _invalid(f"the call ended without a message; {words}")
    if why := excess(method.request, raw):
        raise _invalid(f"the message has {why}")
    try:
        request: Request = method.request.FromString(raw)
    except DecodeError as error:
        raise _invalid(f"the message is no dormouse.v1.{method.request.DESCRIPTOR.name}") from error
    request.DiscardUnknownFields()
    _check_model(request.model)
    if isinstance(request, WithImages):
        _check_images(request.chat)
    if isinstance(request, pb.GenerateRequest):
        _check_generate(request)
    elif isinstance(request, pb.TranscribeRequest):
        _check_transcribe(request)
    elif isinstance(request, Whole):
        _check_request_id(request.request_id)
    return request


def prepare(request: Request, *, model_name: str, rng: random.Random) -> bytes:
    """Return the bytes for the worker: its own name for the model, and what the client left to be drawn.

    Seed and request id are drawn here, once, so that a second try on another worker says the same. The rest of the
    message stays as it was parsed.
    """
    request.model = model_name
    if isinstance(request, pb.GenerateRequest) and not request.sampling_params.HasField("seed"):
        request.sampling_params.seed = rng.getrandbits(64)
    if isinstance(request, pb.TranscribeRequest) and not request.HasField("seed"):
        request.seed = rng.getrandbits(64)
    if isinstance(request, Named) and not request.request_id:
        request.request_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return bytes(request.SerializeToString())


def forwarded_metadata(given: Any, *, caller: str, has_role: bool, salts: Salts) -> Metadata:
    """Return the client's trace context, the caller's name and the salt: workers get no other metadata of a call.

    The ticket that proves the gateway's role is made out to one worker, and comes when that one is known. Who can prove
    no role sends no name and no salt: workers take them from gateways only. Raises CallError INVALID_ARGUMENT if the
    client presents more than one API key.
    """
    kept = tuple((key, value) for key, value in given or () if key in FORWARDED)
    salt = salts.salt(given)
    if not has_role:
        return kept
    named = (*kept, (METADATA_CALLER, salts.alias(caller)))
    return (*named, (METADATA_CACHE_SALT, salt)) if salt else named


def sent_salt(metadata: Metadata) -> str:
    """Return the cache salt that workers get with this forwarded metadata, "" if none."""
    return next((str(value) for key, value in metadata if key == METADATA_CACHE_SALT), "")


def _check_model(model: str) -> None:
    if not model:
        raise _invalid("model is empty; it must be the name of a model, or namespace/name")
    if len(model) > MAX_MODEL_CHARS:
        raise _invalid(f"model has {len(model)} characters; the limit is {MAX_MODEL_CHARS}")


def _check_generate(request: pb.GenerateRequest) -> None:
    if request.HasField("resume"):
        raise _invalid("resume is set; only a gateway may set it towards a worker")
    if request.remote_decode:
        raise _invalid("remote_decode is true; only a gateway may set it towards a worker")
    _check_request_id(request.request_id)


def _check_transcribe(request: pb.TranscribeRequest) -> None:
    if request.HasField("resume"):
        raise _invalid("resume is set; only a gateway may set it towards a worker")
    if len(request.audio) > MAX_AUDIO_BYTES:
        raise _invalid(f"audio is {len(request.audio)} bytes; allowed: at most {MAX_AUDIO_BYTES}")
    _check_request_id(request.request_id)


def _check_images(chat: pb.Chat) -> None:
    try:
        check_chat_images(chat)
    except BadImage as error:
        raise _invalid(f"chat.messages is {error}") from error


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise _invalid(f"request_id has {len(request_id)} characters; the limit is {MAX_REQUEST_ID_CHARS}")
    if request_id and not (request_id.isascii() and request_id.isprintable()):
        raise _invalid(f"request_id is {request_id!r}; allowed are printable ASCII characters")


def _invalid(message: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
