"""What Envoy is told: where a request goes, what changes of it, or a response in its place. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.openai.errors import ApiError, Words, encoded
from dormouse_gateway.picker.head import Head

DESTINATION = "x-gateway-destination-endpoint"
_NAMESPACE = "envoy.lb"
_CHUNK_BYTES = 62 << 10  # Envoy takes no more of a body in one answer than 64 KiB
_SLACK_S = 5.0  # beyond the time that a request may be held: the refusal must still arrive
OWN = "dormouse-"  # headers that nobody but us may set
_KEYS = ("authorization", "x-api-key")  # they decide here, and go no further

Pairs = Iterable[tuple[str, str]]


def proceed() -> pb.ProcessingResponse:
    """Let the headers wait for the body."""
    return pb.ProcessingResponse(request_headers=pb.HeadersResponse())


def patience(limit_s: float) -> pb.ProcessingResponse:
    """Ask Envoy to wait for so long; it does up to its max_message_timeout."""
    response = pb.ProcessingResponse()
    response.override_message_timeout.FromSeconds(math.ceil(limit_s + _SLACK_S))
    return response


def destination(
    head: Head, address: str, proof: Pairs, *, body: bytes, is_changed: bool
) -> Iterator[pb.ProcessingResponse]:
    """Yield the answers that send the request to this address, with what proves there that it was let in."""
    theirs = [key.decode("latin-1") for key, _ in head.headers]
    removed = [key for key in dict.fromkeys(theirs) if key in _KEYS or key.startswith(OWN)]
    set_headers = [*_set([(DESTINATION, address)]), *_set(proof)]
    if is_changed:
        set_headers += _set([("content-length", str(len(body)))])
    common = pb.CommonResponse(
        header_mutation=pb.HeaderMutation(set_headers=set_headers, remove_headers=removed), clear_route_cache=True
    )
    if not head.is_duplex and head.has_body:
        if is_changed:
            common.body_mutation.body = body
        response = pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))
    else:
        response = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
    response.dynamic_metadata.get_or_create_struct(_NAMESPACE)[DESTINATION] = address
    yield response
    if head.is_duplex and head.has_body:
        yield from _chunks(body)


def instead(
    status: int, headers: Iterable[tuple[str, str]], body: bytes, *, details: str = ""
) -> pb.ProcessingResponse:
    """Answer the client at once; nothing goes to a worker."""
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status),
            headers=pb.HeaderMutation(set_headers=_set(headers)),
            body=body,
            details=details,
        )
    )


def refusal(error: ApiError, words: Words, request_id: str) -> pb.ProcessingResponse:
    """Answer with an error object."""
    return instead(error.status, error.headers.items(), encoded(words(error, request_id)), details="dormouse_refused")


def onward(said: Sequence[tuple[str, str]]) -> pb.ProcessingResponse:
    """Let the response's headers pass, with these besides."""
    mutation = pb.HeaderMutation(set_headers=_set(said))
    common = pb.CommonResponse(header_mutation=mutation)
    return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))


def passed_on(head: Head, message: pb.HttpBody) -> pb.ProcessingResponse:
    """Let a part of the response's body pass; where Envoy gave it away, it gets it back."""
    if head.response_mode != pb.ProcessingMode.FULL_DUPLEX_STREAMED:
        return pb.ProcessingResponse(response_body=pb.BodyResponse())
    part = pb.StreamedBodyResponse(body=message.body, end_of_stream=message.end_of_stream)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))
    return pb.ProcessingResponse(response_body=pb.BodyResponse(response=common))


def trailers_pass() -> pb.ProcessingResponse:
    """Let the response's trailers pass."""
    return pb.ProcessingResponse(response_trailers=pb.TrailersResponse())


def _chunks(body: bytes) -> Iterator[pb.ProcessingResponse]:
    """Yield the body in parts that Envoy takes, the last one marked; one even of nothing."""
    for start in range(0, max(1, len(body)), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        part = pb.StreamedBodyResponse(body=body[start:end], end_of_stream=end >= len(body))
        common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))
        yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))


def _set(pairs: Pairs) -> list[pb.HeaderValueOption]:
    """Return headers to set; of several of one name the first takes the place of what there was."""
    options, seen = [], set[str]()
    for key, value in pairs:
        action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        if key in seen:
            action = pb.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
        seen.add(key)
        header = pb.HeaderValue(key=key, raw_value=value.encode("latin-1", "replace"))
        options.append(pb.HeaderValueOption(header=header, append_action=action))
    return options
