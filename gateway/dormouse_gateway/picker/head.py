"""What Envoy tells of a request before its body comes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.headers import check_framing, check_size

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
SERVED_NAMESPACE = "envoy.lb"
SERVED_KEY = "x-gateway-destination-endpoint-served"
_TAKEN = (pb.ProcessingMode.BUFFERED, pb.ProcessingMode.FULL_DUPLEX_STREAMED)


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body."""

    method: str
    path: str  # without the query
    query: str
    headers: Sequence[tuple[bytes, bytes]]  # names in lower case; without HTTP/2's own
    has_body: bool
    mode: int  # a BodySendMode: how the body comes
    response_mode: int
    subset: frozenset[str] | None = None  # addresses, host:port, to which the choice is limited; None = it is not

    @property
    def is_duplex(self) -> bool:
        """Return whether the answer to the headers has to wait for the body, and the body to be given back."""
        return self.mode == pb.ProcessingMode.FULL_DUPLEX_STREAMED

    def value(self, name: str) -> str:
        """Return a header's first value, "" if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key.decode("latin-1") == name), "")

    def check(self) -> None:
        """Raise ApiError for headers that are too large, and for a filter that brings no body before it sends it on."""
        check_size(self.headers)
        check_framing(self.headers)
        if self.has_body and self.mode not in _TAKEN:
            named = pb.ProcessingMode.BodySendMode.Name(pb.ProcessingMode.BodySendMode.ValueType(self.mode))
            words = f"the filter's request_body_mode is {named}; allowed: BUFFERED, FULL_DUPLEX_STREAMED"
            raise ApiError(500, words, "server_error")


def read_head(message: pb.ProcessingRequest) -> Head:
    """Return what the first message says."""
    pairs = [(header.key.lower(), _value(header)) for header in message.request_headers.headers.headers]
    headers = [(key.encode("latin-1", "replace"), value) for key, value in pairs if not key.startswith(":")]
    told = {key: value.decode("latin-1") for key, value in pairs if key.startswith(":")}
    path, _, query = told.get(":path", "").partition("?")
    has_body, mode = not message.request_headers.end_of_stream, _mode(message)
    response_mode = message.protocol_config.response_body_mode
    return Head(told.get(":method", ""), path, query, headers, has_body, mode, response_mode, _subset(message))


def served_by(message: pb.ProcessingRequest) -> str:
    """Return where a response comes from, host:port, as the gateway before us says it; "" if it does not."""
    told = message.metadata_context.filter_metadata.get(SERVED_NAMESPACE)
    return told.fields[SERVED_KEY].string_value.strip() if told is not None and SERVED_KEY in told else ""


def _mode(message: pb.ProcessingRequest) -> int:
    """Return how the body comes; an Envoy that does not say so knows no way but the former ones."""
    told = message.HasField("protocol_config")
    return message.protocol_config.request_body_mode if told else pb.ProcessingMode.BUFFERED


def _subset(message: pb.ProcessingRequest) -> frozenset[str] | None:
    hint = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if hint is None or SUBSET_KEY not in hint:
        return None
    value = hint.fields[SUBSET_KEY]
    listed = [each.string_value for each in value.list_value.values] or value.string_value.split(",")
    return frozenset(each.strip() for each in listed if each.strip())


def _value(header: pb.HeaderValue) -> bytes:
    return header.raw_value or header.value.encode("latin-1", "replace")
