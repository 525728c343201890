"""transformers' own models are read once, and again when files are others; a test's numbers stay what they are."""

import torch
from transformers import AutoModelForCausalLM

from dormouse_worker.model.testing import reference_generate, write_tiny_model
from dormouse_worker.model.testing_reference import read_reference


def test_a_model_is_read_again_when_its_files_are_others(tmp_path):
    write_tiny_model(tmp_path)
    first, same = (read_reference(AutoModelForCausalLM, tmp_path) for _ in range(2))
    said = reference_generate(tmp_path, [1, 2, 3], 6)
    assert first is same
    write_tiny_model(tmp_path, seed=1)
    assert read_reference(AutoModelForCausalLM, tmp_path) is not first
    assert reference_generate(tmp_path, [1, 2, 3], 6) != said


def test_whether_one_was_kept_changes_no_number_that_a_test_draws(tmp_path):
    write_tiny_model(tmp_path)
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        read_reference(AutoModelForCausalLM, tmp_path)
        drawn.append(torch.rand(1).item())
    torch.manual_seed(0)
    assert drawn == [torch.rand(1).item()] * 2
