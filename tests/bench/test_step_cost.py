"""The measured step is one in which every sequence decodes."""

from __future__ import annotations

from bench.step_cost import NUM_SEQS, PreparingExecutor, decoding_engine, measure_step_ms


def test_every_sequence_gets_one_token_in_the_measured_step():
    executor = PreparingExecutor()
    engine = decoding_engine(executor)
    outputs = engine.step().outputs
    assert [len(output.token_ids) for output in outputs] == [1] * NUM_SEQS
    assert executor.is_decoding


def test_both_parts_of_the_cost_are_counted():
    cost = measure_step_ms(num_steps=3)
    assert cost.engine_ms > 0
    assert cost.prepare_ms > 0
    assert cost.total_ms == cost.engine_ms + cost.prepare_ms
