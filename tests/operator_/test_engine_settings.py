"""A knob of the engine is one: resource, pod arguments and flags say what the worker's `EngineSettings` says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml

from dormouse_api.names import DEFAULT_MAX_NUM_SEQS
from dormouse_operator.manifests import worker_arguments
from dormouse_operator.model import Engine
from dormouse_operator.parse import parse_deployment
from dormouse_operator.parse.spec import TARGET_OUTSTANDING
from dormouse_worker.common.knobs import KNOBS
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.flags.settings import parse_settings

CRD = yaml.safe_load((Path(__file__).parents[2] / "crds" / "inferencedeployments.yaml").read_text())
SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
PARTS = {"": SPEC, **{name: SPEC[name]["properties"] for name in ("engine", "lifecycle", "parallelism")}}
PARTS["speculation"] = PARTS["engine"]["speculation"]["properties"]
ELSEWHERE = {  # what of a worker's settings is no word of spec.engine; "" = of the spec itself
    "task": ("", "task"),
    "keep_host_copy": ("lifecycle", "keepHostCopy"),
    "keep_prefix_cache": ("lifecycle", "keepPrefixCache"),
    "keep_encoder_cache": ("lifecycle", "keepEncoderCache"),
    "tensor_parallel_size": ("parallelism", "tensor"),
    "pipeline_parallel_size": ("parallelism", "pipeline"),
    "speculation_method": ("speculation", "method"),
    "speculation_model": ("speculation", "model"),
    "num_speculative_tokens": ("speculation", "maxTokens"),
}
OF_THE_PROGRAM = {  # what no user of the resource says
    *("model", "model_impl", "memory_limit_bytes", "tokenizer_cache", "profile_cache", "threads"),
    *("attention_backend", "engine_runtime", "worker_cls", "worker_extension_cls"),
    # a grant's words
    *("device_memory_budget_bytes", "device_memory_reserve_bytes", "device_memory_sharers", "expected_device"),
    "kv_events_config",
    "image_dir",  # between front and engine of one worker
    *("kv_store_dir", "kv_store_size_bytes"),  # made of spec.engine.kvStore: tests/operator_/manifests/test_kv_store.py
}
OTHER = {  # a value that is not the default
    "runtime": "vllm",
    "task": "embed",
    "device": "cpu",
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 1024,
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": "1Gi",
    "kv_cache_dtype": "fp8",
    "prefault_kv_cache": True,
    "block_size": 32,
    "swap_space_bytes": "2Mi",
    "enable_prefix_caching": False,
    "load_format": "dummy",
    "quantization": "int4",
    "speculation_method": "ngram",
    "speculation_model": "pvc://drafts/small",
    "num_speculative_tokens": 5,
    "cuda_graphs": False,
    "compile_sizes": [8, 1],
    "async_scheduling": False,
    "tool_call_parser": "none",
    "reasoning_parser": "think",
    "seed": 9,
    "enable_lora": True,
    "max_loras": 3,
    "max_lora_rank": 8,
    "max_cpu_loras": 5,
    "keep_host_copy": False,
    "keep_prefix_cache": True,
    "keep_encoder_cache": True,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
}
READ_AS = {
    "speculation_model": "/drafts/drafts/small",
    "kv_cache_memory_bytes": 1 << 30,
    "swap_space_bytes": 2 << 20,
    "compile_sizes": (1, 8),
}
BESIDE = {"runtime": {"device": "cpu"}}  # without which a word is refused
THE_POD_SAYS = {"profile_cache", "model"}  # always


def word_of(name):
    """Return where the resource speaks of a field: a part of the spec and a word in it."""
    first, *others = name.removesuffix("_bytes").split("_")
    return ELSEWHERE.get(name, ("engine", first + "".join(part.capitalize() for part in others)))


def schema_of(name):
    part, word = word_of(name)
    return PARTS[part][word]


def settings_of(**words):
    """Return what a worker reads from the arguments of its pod."""
    parts = {name: {} for name in PARTS}
    for name, value in words.items():
        part, word = word_of(name)
        parts[part][word] = value
    if "runtime" in words:
        parts[""]["image"] = "worker-vllm:1"
    metadata, alone = {"namespace": "team", "name": "tiny", "uid": "u1"}, parts.pop("")
    parts["engine"]["speculation"] = parts.pop("speculation")
    deployment = parse_deployment(
        {"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny"}, **alone, **parts}}
    )
    place = ["--master-addr=leader", "--master-port=29500"]  # of a group, where there is one
    return parse_settings([*worker_arguments(deployment), *place], {})[1]


def test_every_knob_is_a_word_of_the_resource_or_the_programs_own():
    assert OTHER.keys() | OF_THE_PROGRAM == KNOBS.keys()
    words = {word_of(name)[1] for name in OTHER.keys() - ELSEWHERE.keys()}
    assert words | {"speculation", "kvStore"} == PARTS["engine"].keys()


def test_every_default_is_another_word_for_that_of_the_worker():
    """On a cluster the device is a GPU; what the schema leaves open (None) is the worker's 0: its own choice."""
    said = {name: schema_of(name).get("default", KNOBS[name].default) for name in OTHER}
    assert {**said, "device": "cpu"} == {name: KNOBS[name].default for name in OTHER}
    assert {name for name in OTHER if "default" not in schema_of(name)} == {
        *("max_model_len", "kv_cache_memory_bytes", "compile_sizes", "max_cpu_loras", "speculation_model")
    }
    nouns = {field.name: field.default for field in fields(Engine) if field.default is not None}
    assert nouns == {**{name: KNOBS[name].default for name in nouns}, "device": "cuda"}


def test_how_much_a_worker_computes_at_a_time_is_guessed_alike_by_operator_and_gateway():
    """Where no schema filled it in; without a measure of load, a replica should have half of it."""
    assert KNOBS["max_num_seqs"].default == DEFAULT_MAX_NUM_SEQS
    assert f"targetOutstandingPerReplica is {TARGET_OUTSTANDING}." in SPEC["scaling"]["description"]


@pytest.mark.parametrize("name", OTHER)
def test_bounds_and_choices_are_those_of_the_worker(name):
    knob, schema = KNOBS[name], schema_of(name)
    assert tuple(sorted(schema.get("enum", ()), key=str)) == tuple(sorted(knob.choices, key=str))
    assert schema.get("pattern") == knob.meta.pattern or knob.kind is not str
    if knob.kind is tuple:
        assert schema["maxItems"] == knob.meta.max_length
        item = get_args(get_args(knob.hint)[0])[0].__metadata__[0]
        assert (schema["items"]["minimum"], schema["items"]["maximum"]) == (item.ge, item.le)
    elif knob.kind is float:
        assert (schema["minimum"], schema["exclusiveMinimum"], schema["maximum"]) == (knob.meta.gt, True, knob.meta.le)
    elif knob.kind is int:
        stands_for_unset = knob.meta.ge == 0 and "default" not in schema
        assert schema["minimum"] == knob.meta.ge + stands_for_unset
        most = (1 << 63) - 1 if schema.get("format") == "int64" else None
        assert schema.get("maximum", most) == knob.meta.le


@pytest.mark.parametrize("name", OTHER)
def test_a_word_of_the_resource_reaches_this_field_of_the_worker_and_no_other(name):
    beside = BESIDE.get(name, {})
    expected = msgspec.structs.replace(settings_of(**beside), **{name: READ_AS.get(name, OTHER[name])})
    assert settings_of(**beside, **{name: OTHER[name]}) == expected


def test_a_resource_that_says_nothing_leaves_all_to_the_workers_defaults():
    own = {"device": "cuda", **{name: getattr(settings_of(), name) for name in THE_POD_SAYS}}
    assert settings_of() == EngineSettings(**own)
