"""To whom else than our own gateways workers answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

FailureMode = Literal["FailClose", "FailOpen"]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Pods that are told what is cached, by labels; None = of the deployment's own namespace."""

    pod_labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """To whom else than our own gateways workers answer."""

    inference_pool: bool = False  # to gateways of the Gateway API that ask our picker
    failure_mode: FailureMode = "FailClose"  # what these do while no picker answers
    kv_subscribers: tuple[Subscriber, ...] = ()  # to routers that follow what is cached; () = nobody is told


OWN_GATEWAYS: Final = Serving()  # and nobody else
