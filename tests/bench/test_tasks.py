"""Vectors of the peer: longest texts first, each once; and both sides make the same of them."""

import torch

from bench.tasks import PADDED_TEXTS, batches, padded, write_encoder


def test_texts_of_about_one_length_share_a_batch():
    texts = [[1] * (1 + number % 50) for number in range(3 * PADDED_TEXTS + 1)]
    made = list(batches(texts))
    assert [len(batch) for batch in made] == [PADDED_TEXTS] * 3 + [1]
    lengths = [len(text) for batch in made for text in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(lengths) == sorted(map(len, texts))


def test_padding_changes_no_vector(tmp_path):
    module = write_encoder(tmp_path, 32, 1, 4, 48)
    assert padded(module, [[5, 6, 7], [8]]) > 0
    with torch.inference_mode():
        alone = module(input_ids=torch.tensor([[8]])).last_hidden_state[0]
        mask = torch.tensor([[1, 0, 0]])
        both = module(input_ids=torch.tensor([[8, 0, 0]]), attention_mask=mask).last_hidden_state[0, :1]
    assert torch.allclose(both, alone, atol=1e-5)
