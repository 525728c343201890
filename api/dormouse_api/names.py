"""Names that two parts must spell alike: ports, labels, metadata keys, roles, the custom resource's coordinates."""

from __future__ import annotations

from enum import StrEnum

GROUP = "inference.dormouse.dev"
VERSION = "v1alpha1"  # the one that we write and read; the API server stores v1beta1
KIND = "InferenceDeployment"
POOL_KIND = "GpuPool"
ADAPTER_KIND = "InferenceAdapter"
KEY_KIND = "InferenceKey"
API_VERSION = f"{GROUP}/{VERSION}"
API_VERSIONS = (API_VERSION, f"{GROUP}/v1beta1")  # those that are served, and say the same

INFERENCE_PORT = 50051  # workers and gateway: dormouse.v1.Inference, health, reflection
CONTROL_PORT = 50052  # workers: WorkerControl; gateway: GatewayControl
HTTP_PORT = 8000  # gateway, and workers behind others' gateways: the OpenAI-compatible API
KV_EVENTS_PORT, KV_REPLAY_PORT = 5557, 5558  # workers, where it is asked for: vLLM's KV events over ZeroMQ
STANDBY_VARIABLE = "DORMOUSE_STANDBY"  # of a worker: "true" has it start without an engine, and wait for WakeUp
POD_IP_VARIABLE = "DORMOUSE_POD_IP"  # stands in braces in the topic of these, for the pod's address
METRICS_PORT = 8080  # every part: /metrics, /healthz, /readyz over HTTP
GROUP_PORT = 29500  # leaders of groups: where the ranks of the group meet

INFERENCE_SERVICE = "dormouse.v1.Inference"
RELAY_SERVICE = "dormouse.v1.Relay"
CONTROL_SERVICE = "dormouse.v1.WorkerControl"
KV_BLOCKS_SERVICE = "dormouse.v1.KvBlocks"
GATEWAY_CONTROL_SERVICE = "dormouse.v1.GatewayControl"

LABEL_DEPLOYMENT = f"{GROUP}/deployment"  # on every child: the name of its InferenceDeployment
LABEL_REPLICA = f"{GROUP}/replica"  # on worker pods: "0", "1", …
LABEL_REVISION = f"{GROUP}/revision"  # on worker pods: digest of the pod-relevant part of the spec
LABEL_POD_DIGEST = f"{GROUP}/pod-digest"  # on worker pods: digest of what only another pod can change
LABEL_RANKS = f"{GROUP}/ranks"  # on pods of replicas with several ranks: how many the replica has
LABEL_GROUP_SIZE = f"{GROUP}/group-size"  # on pods of replicas with several pods: how many
LABEL_WORKER_INDEX = f"{GROUP}/worker-index"  # beside it: "0" leads; the replica's own number is LABEL_REPLICA
LABEL_LEADER_UID = f"{GROUP}/leader-uid"  # on followers: the very pod that they were made for
LABEL_POOL = f"{GROUP}/pool"  # on pods of a pool's members, and on its claims: the name of the GpuPool
LABEL_SLOT = f"{GROUP}/slot"  # beside it: the slot, which is the name of its ResourceClaim
LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT_WORKER = "worker"  # can be called
COMPONENT_FOLLOWER = "follower"  # computes for the leader of its group, and is called by nobody else
COMPONENT_PRE_PULL = "pre-pull"  # has a model on its node before a worker asks for it
COMPONENT_RESERVATION = "reservation"  # keeps the devices of a pool's slot

PREFILL, DECODE = "prefill", "decode"  # roles of a deployment's pods in its status: who computes prompts, who goes on

DEFAULT_MAX_NUM_SEQS = 64  # spec.engine.maxNumSeqs as the schema fills it in: what a worker computes at a time
DEFAULT_MIN_PROMPT_TOKENS = 512  # spec.roles.prefill.minPromptTokens as the schema fills it in

READINESS_GATE = "dormouse.dev/cache-allocated"  # pod condition, True while the agreed cache is allocated and open

METADATA_TICKET = "dormouse-ticket"  # gRPC metadata: proves the caller's role to one server; absent = client
METADATA_CACHE_SALT = "dormouse-cache-salt"  # gRPC metadata, the gateway's only: who shares cached prefixes
METADATA_CALLER = "dormouse-caller"  # gRPC metadata, the gateway's only: who shares a turn where callers take turns
METADATA_CANARY = "dormouse-canary"  # gRPC metadata and HTTP header of a client: always or never the canary of a model
METADATA_RELAY = "dormouse-relay"  # initial metadata of a worker's Relay: it knows the service

METADATA_HELD = "dormouse-held"  # initial metadata of a gateway's answer: "true" once the request waits
METADATA_HOLD_TIMEOUT = "dormouse-hold-timeout-seconds"  # beside it: how long the request waits at most
METADATA_START = "dormouse-start"  # trailing metadata of a gateway's answer: warm, level1, level2, level3 or cold
METADATA_HOLD_SECONDS = "dormouse-hold-seconds"  # beside it: how long the request was held
METADATA_WAKE_SECONDS = "dormouse-wake-seconds"  # beside it: how much of that until a worker took requests

ANNOTATION_WAKE = (
    "dormouse.dev/wake-requested-at"  # on the resource, by people: RFC 3339; another one than at the last sleep = wake
)
ANNOTATION_MEMORY_REQUEST = f"{GROUP}/memory-request"  # on pods: what they ask for while nobody shrinks them
ANNOTATION_SEAL = f"{GROUP}/seal"  # on pods that the operator made: only it can make one, see its `seals`


class Role(StrEnum):
    """Who calls. A caller that proves nothing is a client."""

    CLIENT = "client"
    GATEWAY = "gateway"
    OPERATOR = "operator"
    WORKER = "worker"  # it serves, and asks another one for blocks where a gateway has given it a ticket for that
