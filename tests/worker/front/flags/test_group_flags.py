"""Flags of a group of ranks: how many, where they meet, and what contradicts."""

from __future__ import annotations

import pytest

from tests.worker.front.flags.kit import parse


def test_a_groups_flags_say_how_many_ranks_and_where_they_meet():
    front, engine = parse(
        *("--tensor-parallel-size=2", "--pipeline-parallel-size=3", "--node-rank=2", "--master-addr=leader"),
        *("--master-port=29500", "--rank-timeout=20", "--group-start-timeout=90"),
    )
    assert (engine.tensor_parallel_size, engine.pipeline_parallel_size) == (2, 3)
    place = front.place
    assert (place.node_rank, place.leads, place.num_nodes) == (2, False, 3)
    assert (place.master_addr, place.master_port, place.message_port) == ("leader", 29500, 29501)
    assert (place.rank_timeout_s, place.start_timeout_s) == (20, 90)
    assert parse()[0].place.leads


def test_all_pods_of_a_group_have_the_same_settings_but_for_their_place():
    """Their digest is how the leader knows that they fit."""
    flags = ("--pipeline-parallel-size=2", "--master-addr=leader", "--master-port=29500")
    assert parse(*flags)[1].digest() == parse(*flags, "--node-rank=1")[1].digest()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--node-rank=1",), "argument --node-rank: 1 is no stage; allowed: 0 to 0"),
        (("--pipeline-parallel-size=2",), "argument --master-addr: needed, for --pipeline-parallel-size is 2"),
        (("--pipeline-parallel-size=2", "--master-addr=x"), "argument --master-port: 0 is not known to other pods"),
        (("--tensor-parallel-size=2", "--rank-timeout=120"), "argument --rank-timeout: 120 is not below"),
        (("--tensor-parallel-size=0",), "argument --tensor-parallel-size"),
    ],
)
def test_flags_of_a_group_that_contradict_each_other_are_named(flags, message, capsys):
    with pytest.raises(SystemExit):
        parse(*flags)
    assert message in capsys.readouterr().err
