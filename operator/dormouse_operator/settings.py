"""The operator's settings: one frozen dataclass, parsed once from the environment at start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dormouse_api import __version__, tracing
from dormouse_api.short_names import GRACE_S, NameRules, Scope
from dormouse_operator.decide.renewal import LEAST_LIFETIME_S
from dormouse_operator.logs import LogFormat
from dormouse_operator.model import Arrows, Picker
from dormouse_operator.parse import SpecError, parse_arrows

_MAX_BYTES = 2**50
_YEAR_S = 365 * 86400
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class SettingsError(ValueError):
    """A setting is missing or bad; the message names the variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the environment decides."""

    watch_namespaces: tuple[str, ...]  # DORMOUSE_WATCH_NAMESPACES, comma list; none = the whole cluster
    worker_image: str  # DORMOUSE_WORKER_IMAGE: for deployments that name none
    gateway_image: str  # DORMOUSE_GATEWAY_IMAGE: for the HTTP API of pods with spec.serving.inferencePool
    # DORMOUSE_PICKER: SERVICE:PORT in the release's namespace, where Envoys ask for endpoints; empty = nowhere
    picker: Picker | None
    worker_image_pull_policy: str  # DORMOUSE_WORKER_IMAGE_PULL_POLICY: Always, IfNotPresent or Never
    # DORMOUSE_WORKER_IMAGE_PULL_SECRETS, comma list: in each pod's namespace
    worker_image_pull_secrets: tuple[str, ...]
    namespace: str  # DORMOUSE_NAMESPACE: of the release; the lease lies here
    release: str  # DORMOUSE_RELEASE: full name of the release; the lease is <release>-operator
    pod_name: str  # DORMOUSE_POD_NAME: reports Events
    pod_uid: str  # DORMOUSE_POD_UID: identity in the lease
    tokens_dir: Path  # DORMOUSE_TOKENS_DIR: operator-seed, gateway-seed; after a rotation also …-previous
    metrics_port: int  # DORMOUSE_METRICS_PORT: /metrics, /healthz, /readyz over HTTP; 0 = any free port
    log_level: str  # DORMOUSE_LOG_LEVEL: DEBUG, INFO, WARNING or ERROR
    log_format: LogFormat  # DORMOUSE_LOG_FORMAT: text (key=value) or json; for whatever collects the lines
    gateway_address: str  # DORMOUSE_GATEWAY_ADDRESS: host:port for status.url; empty = not shown
    gateway_control: str  # DORMOUSE_GATEWAY_CONTROL: host:port under which all gateways are found; empty = load unknown
    agreement_seconds: float  # DORMOUSE_AGREEMENT_SECONDS: how long a first report waits for those of the other pods
    node_loss_seconds: int  # DORMOUSE_NODE_LOSS_SECONDS: how long a worker's pod stays on a node that does not answer
    # DORMOUSE_WORKER_TRACING_ENDPOINT, DORMOUSE_WORKER_TRACING_RATIO: where workers send spans, and of which share of
    # the requests; kept as the variables that workers get
    tracing: Mapping[str, str]
    max_sleeping_host_bytes: int  # DORMOUSE_MAX_SLEEPING_HOST_BYTES: of copies at sleep level 1, per node; 0 = no limit
    # DORMOUSE_MAX_NODE_MEMORY_PERCENT: of a node's allocatable memory, of what models' pods take there; 0 = no limit
    max_node_memory_percent: int
    resync_seconds: (
        float  # DORMOUSE_RESYNC_SECONDS: how often the cache is compared with what was seen, in case of a miss
    )
    mutual_tls: bool  # DORMOUSE_MUTUAL_TLS: issue certificates to operator, gateways and workers, and demand them
    certificate_seconds: int  # DORMOUSE_CERTIFICATE_SECONDS: their lifetime; renewed after two thirds of it
    authority_seconds: int  # DORMOUSE_AUTHORITY_SECONDS: lifetime of the authority that the operator makes
    authority_secret: str  # DORMOUSE_AUTHORITY_SECRET: of somebody else's authority; empty = the operator makes one
    # DORMOUSE_SHORT_NAMES, DORMOUSE_SHORT_NAME_GRACE: who may be called by spec.model.name alone, and for how
    # many seconds a name stays with its namespace once its holder is gone; as the gateways (docs/concepts/routing.md)
    names: NameRules
    # DORMOUSE_NETWORK_POLICY, JSON: the rules of each deployment's NetworkPolicy, workers.ingress and .egress, and
    # those for pods of a group, ranks.ports (among them) and ranks.egress; empty = deployments have none
    arrows: Arrows | None
    max_concurrent_reconciles: int  # DORMOUSE_MAX_CONCURRENT_RECONCILES: of different objects, at the same time

    @property
    def lease_name(self) -> str:
        """Return the name of the lease that elects the acting operator."""
        return f"{self.release}-operator"


def parse_settings(env: Mapping[str, str]) -> Settings:
    """Return the settings. Raises SettingsError."""
    return Settings(
        watch_namespaces=_list(env, "WATCH_NAMESPACES"),
        worker_image=_text(env, "WORKER_IMAGE", f"ghcr.io/dormouse/worker:{__version__}"),
        gateway_image=_text(env, "GATEWAY_IMAGE", f"ghcr.io/dormouse/gateway:{__version__}"),
        picker=_picker(env),
        worker_image_pull_policy=_choice(env, "WORKER_IMAGE_PULL_POLICY", ("IfNotPresent", "Always", "Never")),
        worker_image_pull_secrets=_names(env, "WORKER_IMAGE_PULL_SECRETS"),
        namespace=_text(env, "NAMESPACE", "default"),
        release=_text(env, "RELEASE", "dormouse"),
        pod_name=_text(env, "POD_NAME", "dormouse-operator"),
        pod_uid=_text(env, "POD_UID", "outside"),
        tokens_dir=Path(_text(env, "TOKENS_DIR", "/var/run/dormouse/tokens")),
        metrics_port=int(_number(env, "METRICS_PORT", 8080, 0, 65535)),
        log_level=_choice(env, "LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
        log_format=cast("LogFormat", _choice(env, "LOG_FORMAT", ("text", "json"))),
        gateway_address=_text(env, "GATEWAY_ADDRESS", ""),
        gateway_control=_host_port(env, "GATEWAY_CONTROL"),
        agreement_seconds=_number(env, "AGREEMENT_SECONDS", 10.0, 0.0, 600.0),
        node_loss_seconds=int(_number(env, "NODE_LOSS_SECONDS", 30, 0, 86400)),
        tracing=_tracing(env),
        max_sleeping_host_bytes=int(_number(env, "MAX_SLEEPING_HOST_BYTES", 0, 0, _MAX_BYTES)),
        max_node_memory_percent=int(_number(env, "MAX_NODE_MEMORY_PERCENT", 0, 0, 100)),
        resync_seconds=_number(env, "RESYNC_SECONDS", 30.0, 1.0, 3600.0),
        mutual_tls=_choice(env, "MUTUAL_TLS", ("false", "true")) == "true",
        certificate_seconds=int(_number(env, "CERTIFICATE_SECONDS", 86400, LEAST_LIFETIME_S, _YEAR_S)),
        authority_seconds=int(_number(env, "AUTHORITY_SECONDS", 10 * _YEAR_S, 86400, 30 * _YEAR_S)),
        authority_secret=_text(env, "AUTHORITY_SECRET", ""),
        names=NameRules(
            Scope(_choice(env, "SHORT_NAMES", tuple(Scope))), _number(env, "SHORT_NAME_GRACE", GRACE_S, 0.0, 86400.0)
        ),
        arrows=_arrows(env),
        max_concurrent_reconciles=int(_number(env, "MAX_CONCURRENT_RECONCILES", 32, 1, 1000)),
    )


def _text(env: Mapping[str, str], name: str, default: str) -> str:
    return env.get(f"DORMOUSE_{name}", "") or default


def _tracing(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the standard variables that switch tracing on in workers, none without an endpoint."""
    endpoint = _text(env, "WORKER_TRACING_ENDPOINT", "")
    ratio = _number(env, "WORKER_TRACING_RATIO", 1.0, 0.0, 1.0)
    if not endpoint:
        return {}
    sampler = {tracing.SAMPLER: "parentbased_traceidratio", tracing.RATIO: f"{ratio:g}"}
    try:
        tracing.check_endpoint("DORMOUSE_WORKER_TRACING_ENDPOINT", endpoint)
    except tracing.BadTracing as error:
        raise SettingsError(str(error)) from error
    return {tracing.ENDPOINT: endpoint, **sampler}


def _arrows(env: Mapping[str, str]) -> Arrows | None:
    """Return the rules of network policies, None for none."""
    try:
        return parse_arrows(_text(env, "NETWORK_POLICY", ""))
    except SpecError as error:
        raise SettingsError(f"DORMOUSE_NETWORK_POLICY: {error}; see docs/install.md, networkPolicy") from error


def _picker(env: Mapping[str, str]) -> Picker | None:
    """Return where the picker is, None for nowhere."""
    service, _, port = _host_port(env, "PICKER").rpartition(":")
    return Picker(service, _text(env, "NAMESPACE", "default"), int(port)) if service else None


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return one of the allowed words; the first is the default."""
    value = _text(env, name, allowed[0])
    if value not in allowed:
        raise SettingsError(f"DORMOUSE_{name} is {value!r}; allowed are {', '.join(allowed)}")
    return value


def _list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the words between commas."""
    return tuple(filter(None, (word.strip() for word in _text(env, name, "").split(","))))


def _names(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return names of objects."""
    names = _list(env, name)
    if not all(len(each) <= 253 and _NAME.fullmatch(each) for each in names):
        raise SettingsError(f"DORMOUSE_{name} is {_text(env, name, '')!r}; allowed are names of objects between commas")
    return names


def _host_port(env: Mapping[str, str], name: str) -> str:
    """Return host:port, "" for none."""
    text = _text(env, name, "")
    host, _, port = text.rpartition(":")
    if text and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise SettingsError(f"DORMOUSE_{name} is {text!r}; allowed is HOST:PORT with a port from 1 to 65535")
    return text


def _number(env: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = _text(env, name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise SettingsError(f"DORMOUSE_{name} is {text!r}; allowed is a number from {least:g} to {most:g}")
    return value
