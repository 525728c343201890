"""The port at which Envoy asks. Owns nothing but the composition."""

from __future__ import annotations

from dormouse_api.foreign.ext_proc_pb2_grpc import add_ExternalProcessorServicer_to_server
from dormouse_gateway.openai.bodies import MAX_BODY_BYTES
from dormouse_gateway.picker.service import EndpointPicker
from dormouse_gateway.service_door import ServiceDoor
from dormouse_gateway.tls import Identity, SelfSigned

_MAX_MESSAGE_BYTES = 4 * MAX_BODY_BYTES  # what is too large is to be refused with a sentence of ours


class PickerDoor(ServiceDoor):
    """Serves the picker: plain, or with the gateway's certificate or one that vouches for nothing."""

    def __init__(self, picker: EndpointPicker, identity: Identity | SelfSigned | None, *, max_calls: int) -> None:
        super().__init__(
            lambda server: add_ExternalProcessorServicer_to_server(picker, server),
            identity=identity,
            max_calls=max_calls,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )
        self._picker = picker

    @property
    def num_taken(self) -> int:
        """Return how many requests came so far."""
        return self._picker.num_taken
