"""The port at which KEDA asks. Owns nothing but the composition."""

from __future__ import annotations

from dormouse_api.foreign.external_scaler_pb2_grpc import add_ExternalScalerServicer_to_server
from dormouse_gateway.router import Router
from dormouse_gateway.scaler.service import ExternalScaler
from dormouse_gateway.service_door import ServiceDoor
from dormouse_gateway.tls import Identity

_MAX_MESSAGE_BYTES = 64 << 10
_MAX_CALLS = 4096  # a stream for each ScaledObject, and what is asked beside


class ScalerDoor(ServiceDoor):
    """Serves the scaler: plain, or with the gateway's certificate."""

    def __init__(self, router: Router, identity: Identity | None) -> None:
        super().__init__(
            lambda server: add_ExternalScalerServicer_to_server(ExternalScaler(router), server),
            identity=identity,
            max_calls=_MAX_CALLS,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )
