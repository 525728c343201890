"""The dashboard of one deployment (or a few): load, latency, cache, where its requests went."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel
from tools.dashboards.promql import (
    DEPLOYMENT,
    NAMESPACE,
    OF_DEPLOYMENT,
    OF_MODEL,
    OF_WORKERS,
    quantiles,
    rate,
    total,
)

_HITS = rate("vllm:prefix_cache_hits_total", "model_name", OF_WORKERS)
_QUERIES = rate("vllm:prefix_cache_queries_total", "model_name", OF_WORKERS)
_DRAFTS = rate("vllm:spec_decode_num_drafts_total", "model_name", OF_WORKERS)
_DRAFTED = rate("vllm:spec_decode_num_draft_tokens_total", "model_name", OF_WORKERS)
_TAKEN = rate("vllm:spec_decode_num_accepted_tokens_total", "model_name", OF_WORKERS)

DEPLOYMENT_BOARD = Dashboard(
    "dormouse-deployment",
    "Deployment",
    "One deployment, from its requests down to its blocks.",
    [NAMESPACE, DEPLOYMENT],
    {
        "State": (
            Panel(
                "Ready",
                "short",
                {"{{deployment}}": f"dormouse_deployment_ready{OF_DEPLOYMENT}"},
                "1 while the condition Ready is True.",
            ),
            Panel(
                "Replicas by state",
                "short",
                {"{{state}}": total("dormouse_replicas", "state", OF_DEPLOYMENT)},
                "A replica without a pod is pending.",
            ),
            Panel(
                "Adapters by state",
                "short",
                {"{{state}}": total("dormouse_adapters", "state", OF_DEPLOYMENT)},
                "LoRA adapters that are loaded, on their way, or failed; of spec.adapters and of InferenceAdapters.",
            ),
            Panel(
                "Endpoints of the gateways",
                "short",
                {"{{state}}": total("dormouse_gateway_endpoints", "state", OF_MODEL, function="max")},
                "Worker pods as the gateways see them: ready takes requests, retired finishes what it has.",
            ),
        ),
        "Load": (
            Panel(
                "Requests running and waiting",
                "short",
                {
                    "running {{pod}}": total("vllm:num_requests_running", "pod", OF_WORKERS),
                    "waiting {{pod}}": total("vllm:num_requests_waiting", "pod", OF_WORKERS),
                    "held in the gateways": total("dormouse_held_requests", "", OF_MODEL),
                },
                "In a worker's batch, in a worker's queue, and before any worker.",
            ),
            Panel(
                "Tokens per second",
                "short",
                {
                    "prompt": rate("vllm:prompt_tokens_total", "", OF_WORKERS),
                    "generated": rate("vllm:generation_tokens_total", "", OF_WORKERS),
                },
                "Prompt tokens of accepted requests, and tokens generated.",
            ),
            Panel(
                "Ended requests per second",
                "reqps",
                {"{{finished_reason}}": rate("vllm:request_success_total", "finished_reason", OF_WORKERS)},
                "By the reason for which the worker ended them.",
            ),
        ),
        "Latency": (
            Panel(
                "Time to first token",
                "s",
                quantiles("vllm:time_to_first_token_seconds", "", OF_WORKERS),
                "From arrival at the worker.",
            ),
            Panel(
                "Time between tokens",
                "s",
                quantiles("vllm:inter_token_latency_seconds", "", OF_WORKERS),
                "Between tokens of one stream.",
            ),
            Panel(
                "Parts of a request, median",
                "s",
                {
                    part: quantiles(f"vllm:request_{part}_time_seconds", "", OF_WORKERS)["p50 all"]
                    for part in ("queue", "prefill", "decode")
                },
                "Arrival to first scheduled; to the first token; to the last.",
            ),
            Panel(
                "Whole request",
                "s",
                {
                    **quantiles("vllm:e2e_request_latency_seconds", "", OF_WORKERS, legend="at the worker"),
                    **quantiles("dormouse_gateway_request_seconds", "", OF_MODEL, legend="at the gateway"),
                },
                "The gateway's time has in it what a request was held.",
            ),
        ),
        "KV cache": (
            Panel(
                "KV cache in use",
                "percentunit",
                {"{{pod}}": f"vllm:kv_cache_usage_perc{OF_WORKERS}"},
                "Share of the blocks that hold tokens of running requests.",
            ),
            Panel(
                "Blocks: reported, agreed, allocated",
                "short",
                {
                    "reported {{pod}} rank {{rank}}": f"dormouse_kv_blocks{OF_DEPLOYMENT}",
                    "agreed {{deployment}}": f"dormouse_kv_blocks_agreed{OF_DEPLOYMENT}",
                    "allocated {{pod}}": f"dormouse_kv_blocks_allocated{OF_WORKERS}",
                },
                "Every rank reports how many blocks it could hold; all allocate the minimum.",
            ),
            Panel(
                "Preempted per second",
                "ops",
                {"{{pod}}": rate("vllm:num_preemptions_total", "pod", OF_WORKERS)},
                "Running requests that had to give their blocks back and wait again.",
            ),
        ),
        "Drafts": (
            Panel(
                "Draft tokens per second",
                "short",
                {"scored {{model_name}}": _DRAFTED, "taken {{model_name}}": _TAKEN},
                "Guessed tokens that passes scored, and those of them that were what the model says.",
            ),
            Panel(
                "Draft tokens taken",
                "percentunit",
                {"{{model_name}}": f"{_TAKEN} / {_DRAFTED}"},
                "As a share of those scored.",
            ),
            Panel(
                "Tokens taken in a pass with a draft",
                "short",
                {"{{model_name}}": f"{_TAKEN} / {_DRAFTS}"},
                "Beyond the one that each pass brings anyway.",
            ),
        ),
        "Routing": (
            Panel(
                "Prompt tokens found in the prefix cache",
                "percentunit",
                {"{{model_name}}": f"{_HITS} / {_QUERIES}"},
                "As a share of those looked up.",
            ),
            Panel(
                "Requests with a prefix, per second",
                "reqps",
                {"{{outcome}}": rate("dormouse_gateway_prefix_affinity_total", "outcome", OF_MODEL)},
                "hit = given to the worker that keeps the prefix; spilled = that one had too much to do.",
            ),
            Panel(
                "Circuit breakers",
                "short",
                {"{{pod}}": total("dormouse_gateway_breaker", "pod", OF_MODEL, function="max")},
                "0 closed, 1 half open (lets one request in), 2 open: the gateways send nothing there.",
            ),
        ),
    },
)
