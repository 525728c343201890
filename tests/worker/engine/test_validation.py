"""Settings and requests that cannot work are refused by name before anything heavy happens."""

import msgspec
import pytest

from dormouse_worker.common.errors import InvalidArgument, InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling, PoolingParams
from dormouse_worker.engine.testing import make_add, make_report
from dormouse_worker.engine.validation import check_block_counts, check_settings, unknown_token

DRAFT = {"speculation_method": "draft", "speculation_model": "/d"}


def test_the_defaults_pass():
    check_settings(EngineSettings(model="m"))


def test_qualified_names_pass():
    check_settings(EngineSettings(model="m", worker_cls="a.B", worker_extension_cls="a.b_1.C"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", -1),
        ("block_size", 0),
        ("block_size", 24),
        ("max_num_seqs", 65537),
        ("seed", -1),
        ("device", "tpu"),
        ("max_model_len", -1),
        ("memory_limit_bytes", -5),
        ("kv_cache_memory_bytes", -5),
        ("swap_space_bytes", -1),
        ("threads", -1),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("dtype", "int3"),
        ("load_format", "pickle"),
        ("model_impl", "vllm"),
        ("attention_backend", ""),
        ("worker_cls", ""),
        ("worker_cls", "Worker"),
        ("worker_cls", "my-package.Worker"),
        ("worker_cls", "package."),
        ("worker_extension_cls", "auto"),
        ("worker_extension_cls", "package:Extension"),
    ],
)
def test_a_bad_value_is_named_with_its_field(field, value):
    with pytest.raises(InvalidSettings, match=f"{field} is {value!r}".replace(".", "\\.")):
        check_settings(EngineSettings(model="m", **{field: value}))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"compile_sizes": (8, 0)}, "compile_sizes has 0; allowed are 1 to max_num_batched_tokens, 2048"),
        ({"compile_sizes": (8, 2049)}, "compile_sizes has 2049; allowed are 1 to max_num_batched_tokens, 2048"),
        ({"compile_sizes": (8,), "tensor_parallel_size": 2}, "compile_sizes needs tensor_parallel_size 1, not 2"),
    ],
)
def test_a_size_that_can_not_be_compiled_is_named_with_its_limit(fields, named):
    with pytest.raises(InvalidSettings, match=named):
        check_settings(EngineSettings(model="m", **fields))


@pytest.mark.parametrize("field", ["prompt_token_ids", "output_token_ids"])
@pytest.mark.parametrize("bad", [-1, 10, 2**32])
def test_a_token_that_the_model_has_no_row_for_is_named(field, bad):
    message = msgspec.structs.replace(make_add(prompt=[1, 9]), **{field: [9, bad]})
    assert unknown_token(message, 10) == f"{field} has {bad}; allowed are ids below the vocabulary size 10"
    assert unknown_token(message, 0) is None, "not told"


def test_tokens_that_the_model_knows_pass():
    assert unknown_token(make_add(prompt=[0, 9]), 10) is None


def test_a_text_s_token_is_named_with_the_place_of_its_text():
    message = AddPooling("a", [[1, 9], [10]], PoolingParams())
    assert unknown_token(message, 10) == "inputs[1] has 10; allowed are ids below the vocabulary size 10"
    assert unknown_token(message, 11) is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_loras": 4, "max_cpu_loras": 3}, "max_cpu_loras is 3; at least max_loras, 4, is needed, or 0"),
        ({"compile_sizes": (8,)}, "compile_sizes is set; what adapters add"),
    ],
)
def test_what_adapters_cannot_be_combined_with_is_named(fields, named):
    with pytest.raises(InvalidSettings, match=named):
        check_settings(EngineSettings(model="m", enable_lora=True, **fields))
    ranks = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    check_settings(EngineSettings(model="m", enable_lora=True, max_loras=4, max_cpu_loras=4, **ranks))


@pytest.mark.parametrize(("counts", "named"), [((1, 0), "num_gpu_blocks is 1"), ((0, 2), "num_cpu_blocks is 2")])
def test_a_model_without_a_cache_takes_no_blocks(counts, named):
    report = make_report(block_bytes=0)
    check_block_counts(report, 0, 0)
    with pytest.raises(InvalidArgument, match=f"{named}; allowed is 0"):
        check_block_counts(report, *counts)


def test_drafts_need_rows_beside_those_of_sequences():
    with pytest.raises(InvalidSettings, match="speculation_method ngram needs max_num_seqs of at least 2, not 1"):
        check_settings(EngineSettings(model="m", speculation_method="ngram", max_num_seqs=1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2; blocks are kept (kv_store_dir) of one rank alone"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size is 3; blocks are kept (kv_store_dir) of one rank"),
        ({"device": "cuda"}, "device is 'cuda'; blocks are kept (kv_store_dir) on 'cpu' alone"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching is off; what is kept (kv_store_dir)"),
        ({"kv_store_size_bytes": 0}, "kv_store_size_bytes is 0"),
    ],
)
def test_what_blocks_are_not_kept_with_is_refused_by_name(fields, words):
    with pytest.raises(InvalidSettings) as error:
        check_settings(EngineSettings(model="m", kv_store_dir="/kv", **fields))
    assert words in str(error.value)
    check_settings(EngineSettings(model="m", kv_store_dir="/kv"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"speculation_method": "draft"}, "speculation_method is draft and speculation_model is ''"),
        ({"speculation_method": "eagle"}, "speculation_method is eagle and speculation_model is ''"),
        ({"speculation_model": "/d"}, "speculation_method is off and speculation_model is '/d'"),
        ({"speculation_method": "ngram", "speculation_model": "/d"}, "speculation_method is ngram"),
        ({**DRAFT, "tensor_parallel_size": 2}, "tensor_parallel_size is 2; a draft model"),
        ({**DRAFT, "pipeline_parallel_size": 2}, "pipeline_parallel_size is 2; a draft model"),
        ({**DRAFT, "num_speculative_tokens": 65}, "num_speculative_tokens is 65"),
        ({**DRAFT, "max_num_seqs": 1}, "max_num_seqs of at least 2, not 1"),
        ({**DRAFT, "speculation_method": "mtp"}, "speculation_method is mtp and speculation_model is '/d'"),
        ({"speculation_method": "mtp", "tensor_parallel_size": 2}, "a draft model (speculation_method mtp)"),
        ({"speculation_method": "mtp", "enable_lora": True}, "enable_lora is set, and speculation_method is mtp"),
        ({**DRAFT, "speculation_method": "eagle", "enable_lora": True}, "enable_lora is set, and speculation_method"),
    ],
)
def test_a_draft_model_that_cannot_be_is_refused_by_name(fields, named):
    check_settings(EngineSettings(model="m", **DRAFT, enable_lora=True))
    with pytest.raises(InvalidSettings) as refused:
        check_settings(EngineSettings(model="m", **fields))
    assert named in str(refused.value)
