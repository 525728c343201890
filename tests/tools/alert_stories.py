"""What happens in a cluster minute by minute, and which alerts it brings about."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Story:
    """Series, one sample a minute, and in which minutes the alert is quiet or fires."""

    alert: str
    series: dict[str, str]
    quiet: list[int]
    fires: list[int]
    labels: dict[str, str] = field(default_factory=dict)  # what the firing alert carries, beside its own


STORIES = [
    Story(
        "DormouseNotReady",
        {'dormouse_deployment_ready{namespace="a",deployment="m"}': "1x4 0x25 1x20"},
        quiet=[4, 15, 32],
        fires=[22, 29],
        labels={"namespace": "a", "deployment": "m"},
    ),
    Story(
        "DormouseWakeSlow",
        {
            'dormouse_actuation_seconds_bucket{path="level2",le="20.0"}': "0x120",
            'dormouse_actuation_seconds_bucket{path="level2",le="60.0"}': "0x4 1x115",
            'dormouse_actuation_seconds_bucket{path="level2",le="+Inf"}': "0x4 1x115",
        },
        quiet=[3, 50],
        fires=[10, 30],
        labels={"path": "level2"},
    ),
    Story(
        "DormouseWakeSlow",
        {
            'dormouse_actuation_seconds_bucket{path="cold",le="20.0"}': "0x60",
            'dormouse_actuation_seconds_bucket{path="cold",le="+Inf"}': "0+1x60",
        },
        quiet=[10, 50],  # a first start pulls images: another matter
        fires=[],
    ),
    Story(
        "DormouseHeldTooLong",
        {
            'dormouse_hold_seconds_bucket{model="a/m",le="60.0"}': "0x60",
            'dormouse_hold_seconds_bucket{model="a/m",le="120.0"}': "0x4 2x55",
            'dormouse_hold_seconds_bucket{model="a/m",le="+Inf"}': "0x4 2x55",
        },
        quiet=[3, 20],
        fires=[6, 10],
        labels={"model": "a/m"},
    ),
    Story(
        "DormouseQueueSaturated",
        {
            'vllm:num_requests_waiting{namespace="a",pod="p",model_name="m"}': "0x4 20x20 1x20",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "8x60",
        },
        quiet=[4, 12, 28],
        fires=[16, 25],
        labels={"namespace": "a", "model_name": "m"},
    ),
    Story(
        "DormouseQueueSaturated",
        {'dormouse_rejected_total{namespace="s",pod="gw",reason="full"}': "0x4 0+3x20 60x30"},
        quiet=[4, 10, 40],
        fires=[18, 24],
        labels={"namespace": "s"},
    ),
    Story(
        "DormouseKVNearlyFull",
        {'vllm:kv_cache_usage_perc{namespace="a",pod="p",model_name="m"}': "0.5x4 0.97x30 0.3x30"},
        quiet=[4, 10, 45],
        fires=[22, 34],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseEngineStalled",
        {
            'dormouse_engine_silence_seconds{namespace="a",pod="p",model_name="m"}': "0.1x4 30 90 0.1x20",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "3x30",
        },
        quiet=[4, 8],
        fires=[5, 6],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseEngineStalled",
        {
            'dormouse_engine_silence_seconds{namespace="a",pod="p",model_name="m"}': "0+60x10",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "0x30",
        },
        quiet=[5, 9],  # it loads its weights, which takes what it takes
        fires=[],
    ),
    Story(
        "DormouseCrashLoop",
        {'dormouse_engine_restarts_total{namespace="a",pod="p",model_name="m"}': "0x4 1 2 3 4 4x30"},
        quiet=[4, 30],
        fires=[8, 15],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseCrashLoop",
        {'dormouse_process_start_time_seconds{namespace="s",pod="op"}': "100x4 200 300 400 400x30"},
        quiet=[4, 30],
        fires=[8, 15],
        labels={"pod": "op"},
    ),
    Story(
        "DormouseBlockMismatch",
        {
            'dormouse_kv_blocks_allocated{namespace="a",pod="p",model_name="m"}': "2000x4 1800x20 2000x20",
            'dormouse_kv_blocks_allocated{namespace="a",pod="q",model_name="m"}': "0x60",  # not allocated yet
            'dormouse_kv_blocks{namespace="a",deployment="m",pod="p",rank="0"}': "2100x60",
            'dormouse_kv_blocks{namespace="a",deployment="m",pod="q",rank="0"}': "2000x60",
            'dormouse_kv_blocks_agreed{namespace="a",deployment="m"}': "2000x60",
        },
        quiet=[4, 12, 30],
        fires=[16, 24],
        labels={"namespace": "a", "pod": "p", "deployment": "m"},
    ),
    Story(
        "DormouseLeaderMissing",
        {
            'dormouse_operator_leader{namespace="s",pod="op-1"}': "1x4 0x10 0x20",
            'dormouse_operator_leader{namespace="s",pod="op-2"}': "0x4 0x10 1x20",
        },
        quiet=[4, 6, 20],
        fires=[8, 14],
        labels={"namespace": "s"},
    ),
    Story(
        "DormouseLeaderMissing",
        {'dormouse_operator_leader{namespace="s",pod="op-1"}': "_x9 1x30"},
        quiet=[1, 12],
        fires=[4, 8],
    ),
    Story(
        "DormouseWatchStale",
        {'dormouse_watch_age_seconds{namespace="s",pod="op",resource="pods"}': "10x4 0+60x8 5x20"},
        quiet=[4, 8, 16],
        fires=[11, 13],
        labels={"resource": "pods"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{namespace="a",pod="p"}': "3600-60x60 3600-60x30"},
        quiet=[30, 44, 70],  # at 40 it should be renewed, at 45 a quarter is left
        fires=[53, 59],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{pod="op",holder="authority"}': "700000x9 600000x29 9000000x30"},
        quiet=[5, 12, 50],
        fires=[18, 35],
        labels={"holder": "authority"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{namespace="a",pod="p"}': "600-60x5 900-60x10 900-60x10 900-60x10"},
        quiet=[4, 12, 20, 30],  # the shortest lifetime that there may be, renewed in time
        fires=[],
    ),
    Story(
        "DormousePoolStarving",
        {'dormouse_pool_starving_members{namespace="a",pool="shared"}': "0x4 2x20 0x20"},
        quiet=[4, 8, 26],
        fires=[11, 24],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolFouled",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Fouled"}': "0x4 1x20 0x20",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "3x4 2x20 3x20",
        },
        quiet=[4, 8, 26],
        fires=[11, 24],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolThrashing",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Yielding"}': "0x9 1x60 0x60",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "2x9 1x60 2x60",
        },
        quiet=[9, 20, 90],
        fires=[35, 69],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolThrashing",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Granting"}': "0x9 1x5 0x100",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "1x9 0x5 1x100",
        },
        quiet=[20, 30, 60],  # one engine that starts for five minutes
        fires=[],
    ),
    Story(
        "DormouseErrorBudgetBurnFast",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x300",
            'dormouse_gateway_requests_total{model="a/m",code="INTERNAL",method="Generate"}': "0x10 0+5x60 300x300",
        },
        quiet=[9, 90],  # five minutes after the last failure it is over, though the hour is still bad
        fires=[60, 70],
    ),
    Story(
        "DormouseErrorBudgetBurnSlow",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x900",
            'dormouse_gateway_requests_total{model="a/m",code="UNAVAILABLE",method="Generate"}': "0x10 0+1x400 400x400",
            'dormouse_gateway_requests_total{model="a/m",code="INVALID_ARGUMENT",method="Generate"}': "0+50x900",
        },
        quiet=[9, 450],
        fires=[380, 400],
    ),
    Story(
        "DormouseErrorBudgetBurnFast",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x100",
            'dormouse_gateway_requests_total{model="a/m",code="INVALID_ARGUMENT",method="Generate"}': "0+50x100",
        },
        quiet=[60, 90],  # clients' own mistakes use up nothing
        fires=[],
    ),
]
