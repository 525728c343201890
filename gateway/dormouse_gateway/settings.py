"""The gateway's settings: one frozen dataclass, read once from the environment. No other module reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dormouse_api.mutual_tls import MutualTls, TlsError, read_bundle
from dormouse_api.names import CONTROL_PORT, HTTP_PORT, INFERENCE_PORT, METRICS_PORT
from dormouse_api.short_names import GRACE_S, NameRules, Scope
from dormouse_api.tracing import BadTracing, TracingSettings, read_tracing
from dormouse_gateway.clients.counting import Counting
from dormouse_gateway.clients.key_files import BadKeyFile
from dormouse_gateway.clients.keys import Keyring
from dormouse_gateway.hold.terms import HoldLimits, HoldSettings
from dormouse_gateway.image_room import DEFAULT_BYTES
from dormouse_gateway.migrate.migrator import MovingLimits
from dormouse_gateway.routing.built_in import DEFAULT_BOUND
from dormouse_gateway.routing.policy import PolicyOptions, RouterPolicy
from dormouse_gateway.routing.registry import DEFAULT_POLICY, BadPolicy, make_policy
from dormouse_gateway.tls import Identity
from dormouse_gateway.variables import BadSetting, Reader

_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)  # no slots: defaults are read from the class
class Settings:
    """Everything that can be set. Each field names its variable."""

    # DORMOUSE_WATCH_NAMESPACES: comma-separated; empty = the whole cluster.
    watch_namespaces: tuple[str, ...] = ()
    # DORMOUSE_TOKENS_DIR: holds the files gateway-seed and, after a rotation, gateway-seed-previous. None = the gateway
    # proves no role to workers and nobody can be the operator: for trials outside of a cluster.
    tokens_dir: Path | None = None
    # DORMOUSE_POD_IPS: comma-separated, the pod's own addresses: to one of them the operator's tickets are made out.
    pod_ips: tuple[str, ...] = ()
    # DORMOUSE_HOST: address to listen on. The default is every one, IPv6 where the machine has it.
    host: str = "[::]"
    # DORMOUSE_PORT, DORMOUSE_CONTROL_PORT, DORMOUSE_METRICS_PORT, DORMOUSE_HTTP_PORT: of clients' gRPC, of the
    # operator's, of /metrics, of the OpenAI-compatible API. 0 = any free one, for tests.
    port: int = INFERENCE_PORT
    control_port: int = CONTROL_PORT
    metrics_port: int = METRICS_PORT
    http_port: int = HTTP_PORT
    # DORMOUSE_PICKER_PORT: where Envoy asks which worker gets a request (docs/how-to/envoy.md); chart: 9002. None = it
    # cannot ask.
    picker_port: int | None = None
    # DORMOUSE_PICKER_SELF_SIGNED: true or false. There the gateway shows a certificate that it made itself, whatever
    # it shows elsewhere: some speak TLS to every picker, and look at no name.
    picker_self_signed: bool = False
    # DORMOUSE_SCALER_PORT: where KEDA asks how much there is to do (docs/how-to/keda.md); chart: 9003. None = nowhere.
    scaler_port: int | None = None
    # DORMOUSE_API_KEYS_DIR: one file for each client's key (see keys.py). None = everybody may call everything. Read
    # again when the files change; at the start a bad one stops the program.
    api_keys_dir: Path | None = None
    # DORMOUSE_REQUIRE_API_KEYS: true or false. Refuse callers without a known key, also where DORMOUSE_API_KEYS_DIR is
    # not set: then keys are InferenceKeys. Where none is required, known keys count all the same.
    require_api_keys: bool = False
    # DORMOUSE_GATEWAYS: how many gateways share the limits of keys, until the operator, which counts for all, says it.
    # While it is away each takes this part of every limit.
    num_gateways: int = 1
    # DORMOUSE_TLS_CERT_FILE, DORMOUSE_TLS_KEY_FILE: PEM, both or none. With them the gRPC and the HTTP API speak TLS
    # only, control and metrics stay plain (they are for the cluster). Read again when the files change.
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    # DORMOUSE_MUTUAL_TLS_DIR: tls.crt, tls.key and ca.crt, by which the gateway proves itself to workers, and knows
    # them and the operator at its control port. None = both ways are plain. Read again when the files change.
    mutual_tls_dir: Path | None = None
    # DORMOUSE_RELOAD_INTERVAL, seconds: how often it is looked whether those files changed. The kubelet itself takes up
    # to a minute to bring a Secret's change.
    reload_interval_s: float = 5.0
    # DORMOUSE_HTTP_MAX_CONNECTIONS: of clients of the HTTP API; more are closed at once. Each costs some 50 KiB.
    # It is at most half of the files that the process may open.
    http_max_connections: int = 2048
    # DORMOUSE_HTTP_TIMEOUT, seconds: for a request's headers, for its body, and for a client to take what is sent to
    # it; so long a connection may be idle, too. Who is slower is sent away: slow clients cannot hold all connections.
    http_timeout_s: float = 30.0
    # DORMOUSE_LOG_LEVEL: debug, info, warning or error.
    log_level: str = "info"
    # DORMOUSE_DRAIN_TIMEOUT, seconds: how long running requests may take to end after SIGTERM. With the lame-duck time
    # it must stay below the pod's terminationGracePeriodSeconds (360 in the chart, which sets 350 here).
    drain_timeout_s: float = 30.0
    # DORMOUSE_LAME_DUCK, seconds: how long new requests are still taken after SIGTERM, while the cluster learns that
    # this gateway goes away. Shorter than a second loses requests to a closed port.
    lame_duck_s: float = 2.0
    # DORMOUSE_DEFAULT_DEADLINE, seconds: of requests that bring none, so that no stream lives for ever.
    default_deadline_s: float = 600.0
    # DORMOUSE_MAX_MOVES: how often one request is asked again, or continued, on another worker: a request that kills
    # workers must not get to all of them. 0 = never.
    max_moves: int = 3
    # DORMOUSE_MIGRATE_STREAM_BYTES, DORMOUSE_MIGRATE_TOTAL_BYTES: how much is kept of what one stream, and of what all
    # streams have said, so that they can be continued when their worker dies. A token is some 70 bytes, with 20
    # log-probabilities some 400. A stream that does not fit ends UNAVAILABLE with its worker.
    migrate_stream_bytes: int = 4 << 20
    migrate_total_bytes: int = 64 << 20
    # DORMOUSE_MIGRATE_AFTER, seconds: how long a worker that drains, or that is deleted, may take to finish its streams
    # itself before they are continued on others. Moving costs a prompt's computation each.
    migrate_after_s: float = 10.0
    # DORMOUSE_ROUTER_POLICY, or --router-policy: who chooses among the workers that may have a request
    # (docs/concepts/routing.md): prefix-affinity, least-tokens, round-robin, or one of an installed package.
    router_policy: str = DEFAULT_POLICY
    # DORMOUSE_AFFINITY_BOUND, or --affinity-bound: with prefix-affinity a worker gets the requests of its prefixes
    # until it has so many times the mean of outstanding tokens. 1 = spread evenly; more finds more in prefix caches.
    affinity_bound: float = DEFAULT_BOUND
    # DORMOUSE_SHORT_NAMES, DORMOUSE_SHORT_NAME_GRACE: who may be called by spec.model.name alone (holder, namespaced,
    # none: docs/concepts/routing.md), and for how many seconds a name stays with its namespace once its holder is gone.
    names: NameRules = field(default_factory=NameRules)
    # DORMOUSE_SATURATED_TIMEOUT, seconds: how long a request waits at most while all ready workers of its model are
    # busy. Short, because another place may be free; for a model that must wake it is lifecycle.holdTimeoutSeconds.
    saturated_timeout_s: float = 30.0
    # DORMOUSE_WORKER_QUEUE: requests beyond its batch (spec.engine.maxNumSeqs) that one worker is given to wait, so
    # that it never idles. More wait here, from where they can go to any worker.
    worker_queue: int = 32
    # DORMOUSE_MAX_HELD_BYTES: of the requests that wait for one model. Their number is lifecycle.maxHeldRequests.
    max_held_bytes: int = 64 << 20
    # DORMOUSE_MAX_HELD_TOTAL, DORMOUSE_MAX_HELD_TOTAL_BYTES: of all models together. A request that waits costs some
    # 50 KiB beside its own bytes; the chart's limit of 512 MiB leaves room for these.
    max_held_total: int = 4000
    max_held_total_bytes: int = 128 << 20
    # DORMOUSE_MAX_IMAGE_BYTES: of all requests with images that are under way, held or not, as bodies and as messages;
    # further ones get RESOURCE_EXHAUSTED. An image takes some 2.4 times its file.
    max_image_bytes: int = DEFAULT_BYTES
    # DORMOUSE_KEPT_IMAGE_BYTES: of images that are kept after their request, so that the same caller may name them by
    # their digest in later ones. 0 = none are kept.
    kept_image_bytes: int = 0
    # DORMOUSE_IMAGE_HOSTS: comma-separated, NAME or NAME:PORT, *.NAME for all below it: from where the gateway fetches
    # images that HTTP clients name by an https: URL, if their addresses are public. Empty = images come as data: URLs.
    image_hosts: frozenset[str] = frozenset()
    # DORMOUSE_ENABLE_REFLECTION: true or false. On, so that grpcurl works without the .proto files.
    enable_reflection: bool = True
    # OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other standard variables, or --tracing-endpoint: where spans go
    # (docs/operations/tracing.md). Off unless an endpoint is given.
    tracing: TracingSettings = field(default_factory=TracingSettings)

    @property
    def moving(self) -> MovingLimits:
        """Return what limits the moves of requests."""
        return MovingLimits(self.max_moves, self.migrate_stream_bytes, self.migrate_total_bytes)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the settings. An empty variable counts as unset. Raises BadSetting."""
        given = {name: value.strip() for name, value in env.items() if value.strip()}
        read = Reader(given)
        namespaces = given.get("DORMOUSE_WATCH_NAMESPACES", "").split(",")
        if ("DORMOUSE_TLS_CERT_FILE" in given) != ("DORMOUSE_TLS_KEY_FILE" in given):
            raise BadSetting("DORMOUSE_TLS_CERT_FILE and DORMOUSE_TLS_KEY_FILE: one is given; allowed are both or none")
        return cls(
            watch_namespaces=tuple(name.strip() for name in namespaces if name.strip()),
            tokens_dir=read.path("DORMOUSE_TOKENS_DIR"),
            pod_ips=tuple(filter(None, (ip.strip() for ip in given.get("DORMOUSE_POD_IPS", "").split(",")))),
            host=given.get("DORMOUSE_HOST", cls.host),
            port=read.port("DORMOUSE_PORT", cls.port),
            control_port=read.port("DORMOUSE_CONTROL_PORT", cls.control_port),
            metrics_port=read.port("DORMOUSE_METRICS_PORT", cls.metrics_port),
            http_port=read.port("DORMOUSE_HTTP_PORT", cls.http_port),
            picker_port=read.port_or_none("DORMOUSE_PICKER_PORT"),
            picker_self_signed=read.boolean("DORMOUSE_PICKER_SELF_SIGNED", default=cls.picker_self_signed),
            scaler_port=read.port_or_none("DORMOUSE_SCALER_PORT"),
            api_keys_dir=read.path("DORMOUSE_API_KEYS_DIR"),
            require_api_keys=read.boolean("DORMOUSE_REQUIRE_API_KEYS", default=cls.require_api_keys),
            num_gateways=read.number("DORMOUSE_GATEWAYS", cls.num_gateways, least=1, most=10_000),
            tls_cert_file=read.path("DORMOUSE_TLS_CERT_FILE"),
            tls_key_file=read.path("DORMOUSE_TLS_KEY_FILE"),
            mutual_tls_dir=read.path("DORMOUSE_MUTUAL_TLS_DIR"),
            reload_interval_s=read.seconds("DORMOUSE_RELOAD_INTERVAL", cls.reload_interval_s, least=0.1),
            http_max_connections=read.number(
                "DORMOUSE_HTTP_MAX_CONNECTIONS", cls.http_max_connections, least=1, most=1_000_000
            ),
            http_timeout_s=read.seconds("DORMOUSE_HTTP_TIMEOUT", cls.http_timeout_s, least=0.1),
            log_level=read.choice("DORMOUSE_LOG_LEVEL", cls.log_level, _LOG_LEVELS),
            drain_timeout_s=read.seconds("DORMOUSE_DRAIN_TIMEOUT", cls.drain_timeout_s, least=0),
            lame_duck_s=read.seconds("DORMOUSE_LAME_DUCK", cls.lame_duck_s, least=0),
            default_deadline_s=read.seconds("DORMOUSE_DEFAULT_DEADLINE", cls.default_deadline_s, least=1),
            max_moves=read.number("DORMOUSE_MAX_MOVES", cls.max_moves, most=100),
            migrate_stream_bytes=read.number("DORMOUSE_MIGRATE_STREAM_BYTES", cls.migrate_stream_bytes, most=1 << 40),
            migrate_total_bytes=read.number("DORMOUSE_MIGRATE_TOTAL_BYTES", cls.migrate_total_bytes, most=1 << 40),
            migrate_after_s=read.seconds("DORMOUSE_MIGRATE_AFTER", cls.migrate_after_s, least=0),
            router_policy=given.get("DORMOUSE_ROUTER_POLICY", cls.router_policy),
            affinity_bound=read.factor("DORMOUSE_AFFINITY_BOUND", cls.affinity_bound),
            names=NameRules(
                Scope(read.choice("DORMOUSE_SHORT_NAMES", Scope.HOLDER, tuple(Scope))),
                read.seconds("DORMOUSE_SHORT_NAME_GRACE", GRACE_S, least=0),
            ),
            saturated_timeout_s=read.seconds("DORMOUSE_SATURATED_TIMEOUT", cls.saturated_timeout_s, least=0),
            worker_queue=read.number("DORMOUSE_WORKER_QUEUE", cls.worker_queue),
            max_held_bytes=read.number("DORMOUSE_MAX_HELD_BYTES", cls.max_held_bytes),
            max_held_total=read.number("DORMOUSE_MAX_HELD_TOTAL", cls.max_held_total),
            max_held_total_bytes=read.number("DORMOUSE_MAX_HELD_TOTAL_BYTES", cls.max_held_total_bytes),
            image_hosts=read.hosts("DORMOUSE_IMAGE_HOSTS"),
            max_image_bytes=read.number("DORMOUSE_MAX_IMAGE_BYTES", cls.max_image_bytes),
            kept_image_bytes=read.number("DORMOUSE_KEPT_IMAGE_BYTES", cls.kept_image_bytes),
            enable_reflection=read.boolean("DORMOUSE_ENABLE_REFLECTION", default=cls.enable_reflection),
            tracing=_tracing(given),
        )


def hold_settings(settings: Settings) -> HoldSettings:
    """Return the part that is about requests that wait."""
    limits = HoldLimits(
        max_bytes=settings.max_held_bytes,
        max_total_requests=settings.max_held_total,
        max_total_bytes=settings.max_held_total_bytes,
    )
    return HoldSettings(
        limits=limits, saturated_timeout_s=settings.saturated_timeout_s, worker_queue=settings.worker_queue
    )


def _tracing(given: Mapping[str, str]) -> TracingSettings:
    try:
        return read_tracing(given, given.get("--tracing-endpoint", ""))
    except BadTracing as error:
        raise BadSetting(str(error)) from error


def read_policy(settings: Settings) -> RouterPolicy:
    """Make the router policy. Raises BadSetting."""
    try:
        return make_policy(settings.router_policy, PolicyOptions(affinity_bound=settings.affinity_bound))
    except BadPolicy as error:
        raise BadSetting(f"DORMOUSE_ROUTER_POLICY: {error}") from error


def read_keys(settings: Settings) -> Keyring:
    """Read the clients' keys. Raises BadSetting."""
    try:
        counting = Counting(num_gateways=settings.num_gateways)
        return Keyring(settings.api_keys_dir, is_required=settings.require_api_keys, counting=counting)
    except (BadKeyFile, OSError) as error:
        raise BadSetting(f"DORMOUSE_API_KEYS_DIR: {error}") from error


def read_identity(settings: Settings) -> Identity | None:
    """Read certificate and key, if there are any. Raises BadSetting."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    try:
        return Identity(settings.tls_cert_file, settings.tls_key_file)
    except OSError as error:
        where = f"{settings.tls_cert_file} and {settings.tls_key_file}"
        raise BadSetting(f"DORMOUSE_TLS_CERT_FILE, DORMOUSE_TLS_KEY_FILE: {where}: {error}") from error


def read_mutual_tls(settings: Settings) -> MutualTls | None:
    """Read what the gateway proves itself with, if there is anything. Raises BadSetting."""
    if settings.mutual_tls_dir is None:
        return None
    try:
        return MutualTls(read_bundle(settings.mutual_tls_dir))
    except TlsError as error:
        raise BadSetting(f"DORMOUSE_MUTUAL_TLS_DIR: {error}") from error
