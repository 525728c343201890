"""Ranks compute with our kernels too, and say to each other what one rank would have kept to itself."""

import pytest

from dormouse_worker.common.errors import RankLost, RanksDisagree
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.executor.ranks.agreement import group_model
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor.test_groups import PROMPTS, make_engine, run

pytestmark = pytest.mark.usefixtures("loaded_kernels")

RANDOM = {"temperature": 1.0, "seed": 4}  # two logits that differ in a bit are another token, soon


@pytest.fixture
def group_of(tmp_path):
    """Return a function (T, P, **settings) → group over one model."""
    directory, made = write_tiny_model(tmp_path / "model", num_hidden_layers=4), []

    def make(tensor, pipeline, **settings):
        made.append(FakeGroupExecutor(directory, tensor, pipeline, **settings))
        return made[-1]

    yield make
    for group in made:
        group.shutdown()


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (2, 2)])
def test_every_rank_computes_with_the_kernels(group_of, loaded_kernels, shape):
    group = group_of(*shape)
    assert {worker.get_model_info().compute_path for worker in group.workers} == {f"native {loaded_kernels.name}"}


def test_only_the_stage_that_has_logits_gathers_them(group_of):
    group = group_of(2, 2)
    run(make_engine(group), PROMPTS)
    assert [rank.num_gathered > 0 for rank in group.group.ranks] == [False, False, True, True]


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_change_no_bit_in_bfloat16_either(group_of, stages):
    alone, group = (group_of(1, count, dtype="bfloat16") for count in (1, stages))
    assert run(make_engine(group), PROMPTS, **RANDOM) == run(make_engine(alone), PROMPTS, **RANDOM)


def test_what_a_rank_waited_for_in_vain_ends_its_pass_and_not_the_process(group_of):
    group = group_of(2, 1)
    make_engine(group)
    group.group.timeout_s = 0.05
    with pytest.raises(RankLost, match=r"rank 1: an exchange within the stage was not answered within 0\.05 s"):
        group.workers[1]._check_golden(Stopwatch())
    group.group.mend()
    group.group.timeout_s = 20
    assert run(make_engine(group), PROMPTS) == run(make_engine(group_of(1, 1)), PROMPTS)


def test_ranks_of_which_only_some_have_kernels_do_not_begin():
    paths = {"rank 0": "native avx2", "rank 1": "lean, attention native; not native: the kernels were not compiled"}
    models = {name: ModelInfo(1, "float32", compute_path=path) for name, path in paths.items()}
    with pytest.raises(RanksDisagree, match=r"rank 1: its compute path is lean.*that of rank 0 is native avx2"):
        group_model(models)


def test_ranks_may_have_different_variants():
    models = {name: ModelInfo(1, "float32", compute_path=f"native {name}") for name in ("avx2", "avx512")}
    assert group_model(models).compute_path == "native avx2"
