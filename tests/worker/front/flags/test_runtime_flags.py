"""The command line with another engine than ours: what it takes, and what is refused by name."""

from __future__ import annotations

import pytest

from dormouse_worker.front.flags.settings import parse_settings


def test_another_runtime_has_its_interpreter():
    front, engine = parse_settings(["--model=/models/tiny", "--runtime=vllm", "--engine-python=/vllm/bin/python"], {})
    assert (engine.runtime, front.engine_python) == ("vllm", "/vllm/bin/python")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--spare-engine", "argument --spare-engine: not allowed with --runtime vllm"),
        ("--device-grants", "argument --device-grants: not allowed with --runtime vllm"),
        ("--profiler-dir=/tmp", "argument --profiler-dir: not allowed with --runtime vllm"),
        ("--enable-lora", "argument --runtime: enable_lora is True; with runtime 'vllm' allowed is False"),
        ("--device=cuda", "argument --runtime: device is 'cuda'; with runtime 'vllm' allowed is 'cpu'"),
        ("--tensor-parallel-size=2", "argument --runtime: tensor_parallel_size is 2; with runtime 'vllm' allowed is 1"),
    ],
)
def test_what_another_runtime_does_not_do_ends_the_program_by_name(flag, words, capsys):
    with pytest.raises(SystemExit):
        parse_settings(["--model=/models/tiny", "--runtime=vllm", flag], {})
    assert words in capsys.readouterr().err
