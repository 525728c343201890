"""Envoy's configuration as people write it for an endpoint picker (docs/how-to/envoy.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
_NAMESPACE = "envoy.lb"
_TYPE = "type.googleapis.com/envoy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What differs between configurations."""

    pickers: Sequence[int]  # ports of ours
    fallback: Sequence[int] = ()  # ports of workers that get what no picker placed; none = what has no place fails
    fails_open: bool = False
    picker_tls: bool = False  # to pickers, whoever they are
    request_body_mode: str = "BUFFERED"
    response_body_mode: str = "STREAMED"
    message_timeout_s: float = 5.0
    num_headers: int = 100
    headers_kb: int = 60
    more: dict[str, Any] = field(default_factory=dict)  # of the filter


def bootstrap(wish: Wish) -> dict[str, Any]:
    """Return everything that Envoy reads."""
    return {
        "admin": {"address": _address(0)},
        "static_resources": {
            "listeners": [_listener(wish)],
            "clusters": [_pickers(wish), _workers(wish)],
        },
    }


def _listener(wish: Wish) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}
    duplex = "FULL_DUPLEX_STREAMED"
    manager = {
        "@type": f"{_TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "max_request_headers_kb": wish.headers_kb,
        "common_http_protocol_options": {"max_headers_count": wish.num_headers},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": _filter(wish, duplex)},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}.extensions.filters.http.router.v3.Router"},
            },
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": "http", "address": _address(0), "filter_chains": [chain]}


def _filter(wish: Wish, duplex: str) -> dict[str, Any]:
    return {
        "@type": f"{_TYPE}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "pickers"}},
        "failure_mode_allow": wish.fails_open,
        "message_timeout": f"{wish.message_timeout_s}s",
        "max_message_timeout": "700s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": wish.request_body_mode,
            "request_trailer_mode": "SEND" if wish.request_body_mode == duplex else "SKIP",
            "response_header_mode": "SEND",
            "response_body_mode": wish.response_body_mode,
            "response_trailer_mode": "SEND" if wish.response_body_mode == duplex else "SKIP",
        },
        "metadata_options": {
            "receiving_namespaces": {"untyped": [_NAMESPACE]},
            **({"forwarding_namespaces": {"untyped": [_NAMESPACE]}} if wish.fallback else {}),
        },
        **wish.more,
    }


def _pickers(wish: Wish) -> dict[str, Any]:
    return {
        "name": "pickers",
        "type": "STATIC",
        "connect_timeout": "1s",
        **_spoken("http2_protocol_options"),
        "load_assignment": _assignment("pickers", wish.pickers),
        **({"transport_socket": _any_tls()} if wish.picker_tls else {}),
    }


def _any_tls() -> dict[str, Any]:
    """Return TLS to whoever is there, as Envoy AI Gateway speaks it to every picker."""
    context = {
        "@type": f"{_TYPE}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {}},
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _spoken(version: str, **common: str) -> dict[str, Any]:
    """Return which HTTP a cluster speaks, and what holds for every one."""
    options = {
        "@type": f"{_TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": common,
        "explicit_http_config": {version: {}},
    }
    return {
        "typed_extension_protocol_options": {f"{_TYPE[20:]}.extensions.upstreams.http.v3.HttpProtocolOptions": options}
    }


def _workers(wish: Wish) -> dict[str, Any]:
    """Return who takes requests: whom the header names and, with a fallback, one of these where it names nobody."""
    spoken = _spoken("http_protocol_options", idle_timeout="20s")
    if not wish.fallback:
        named = {"use_http_header": True, "http_header_name": DESTINATION}
        return {
            "name": "workers",
            "type": "ORIGINAL_DST",
            "connect_timeout": "1s",
            "lb_policy": "CLUSTER_PROVIDED",
            **spoken,
            "original_dst_lb_config": named,
        }
    spread = {"@type": f"{_TYPE}.extensions.load_balancing_policies.round_robin.v3.RoundRobin"}
    override = {
        "@type": f"{_TYPE}.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}],
        "selected_host_key": {"key": _NAMESPACE, "path": [{"key": SERVED}]},
        "fallback_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.round_robin",
                        "typed_config": spread,
                    }
                }
            ]
        },
    }
    policy = {
        "typed_extension_config": {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    }
    return {
        "name": "workers",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [policy]},
        **spoken,
        "load_assignment": _assignment("workers", wish.fallback),
    }


def _assignment(name: str, ports: Sequence[int]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
