"""Every causal language model that transformers knows: our tokens are its own, or the worker says by name why not."""

from __future__ import annotations

import pytest

from tests.outside.architectures import NAMES, sweep

SEED = 20261123  # of the weights, always the same: of other ones two tokens might be as likely as each other
SERVED = frozenset(
    """
afmoe apertus arcee aria_text axk1 beam bert bert-generation biogpt bitnet cohere cohere2 cohere2_moe
cohere_compass_text ctrl cwm dbrx deepseek_v2 deepseek_v3 dots1 electra ernie ernie4_5 ernie4_5_moe exaone4
exaone_moe flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text gemma3n_text gemma4 gemma4_text gemma4_unified
gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_oss granite
granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna lfm2 lfm2_moe llama longcat_flash mellum
mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder moshi
nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phi4_multimodal qwen2 qwen2_moe qwen3 qwen3_moe
roc_bert seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
""".split()  # noqa: SIM905  # a paragraph, not 103 lines
)
NOT_BUILT = frozenset({"gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody"})

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_served_as_transformers_computes_it_or_refused_by_name(name, record_property):
    ending = sweep(name, SEED)
    record_property("ending", ending.verdict)
    if ending.verdict == "not built" and name in NOT_BUILT:
        pytest.skip(f"no tiny model of it can be made here: {ending.words}")
    assert ending.verdict == ("equal" if name in SERVED else "refused"), str(ending)
    record_property("words", ending.words)
