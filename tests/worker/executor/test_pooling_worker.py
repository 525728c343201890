"""A model that makes vectors, through all of a worker's life: profile, agreement on no block, sleeps, damage."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common import commands
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import (
    GoldenTokensDiffer,
    InsufficientMemory,
    InvalidArgument,
    InvalidSettings,
    LogitsNotFinite,
    ModelInvalid,
)
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import CommandRequest, CommandResult, EngineStatus, State, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling, PoolingParams
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.files.task_files import task_of
from dormouse_worker.model.testing_pooling import write_tiny_classifier, write_tiny_encoder

TEXTS = ([5, 6, 7], [9], [8, 7, 6])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model's directory that nobody changes."""
    return write_tiny_encoder(tmp_path_factory.mktemp("encoder"), modules=("mean_tokens", "normalize"))


@pytest.fixture(params=["auto", "torch"])
def make(request):
    """Return a function that makes executors, without torch and with it, shut down after the test."""
    made = []

    def made_of(path, environ=None, **settings):
        sizes = {"threads": 1, "max_num_batched_tokens": 64}
        fields = {"model": str(path), "engine_runtime": request.param, **sizes, **settings}
        made.append(SingleProcessExecutor(EngineSettings(**fields), environ or {}, Host()))
        return made[-1]

    yield made_of
    for executor in made:
        executor.shutdown()


def start(executor):
    executor.init_device()
    executor.load_model()
    assert executor.determine_num_available_blocks() == (0, 0)
    executor.initialize_cache(0, 0)
    return executor


def vectors(executor):
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in TEXTS))
    return executor.begin_pooling(batch).finish().vectors


def test_no_block_is_reported_and_everything_else_is(model, make):
    executor = start(make(model))
    report = executor.get_memory_report()
    assert (report.num_gpu_blocks, report.block_bytes, report.max_model_len) == (0, 0, 64)
    assert report.weights_bytes > 0
    info = executor.get_model_info()
    assert (info.task, info.embedding_size) == ("embed", 32)


@pytest.mark.parametrize("level", [1, 2])
def test_vectors_are_the_same_bits_after_a_sleep_whole_or_in_parts(model, make, level):
    executor = start(make(model))
    before = vectors(executor)
    for tags in (TAGS, ("weights",), ("kv_cache",)):
        executor.sleep(level, tags)
        assert executor.prepare_wake_up(tags) == 0
        assert "weights" in executor.wake_up(tags).phases or tags == ("kv_cache",)
        assert vectors(executor) == before


@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
def test_numbers_of_a_classifier_are_the_same_bits_after_a_sleep(tmp_path, make, architecture):
    executor = start(make(write_tiny_classifier(tmp_path, architecture)))
    before = vectors(executor)
    executor.sleep(2, TAGS)
    assert executor.prepare_wake_up(TAGS) == 0
    executor.wake_up(TAGS)
    assert vectors(executor) == before


def test_a_pass_that_stops_for_others_has_the_bits_of_one_that_does_not(model, make):
    executor = start(make(model))
    before = vectors(executor)
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in TEXTS))
    left, stopped = executor.begin_pooling(batch), executor.begin_pooling(batch)
    left.advance(0)
    while not stopped.advance(0):
        assert vectors(executor) == before
    left.leave()
    assert stopped.finish().vectors == before


def test_weights_that_are_no_longer_the_same_are_found_by_their_vectors(model, make):
    executor = start(make(model))
    executor.verify()
    weights = executor._wrapper._worker._model.weights
    weights.tensor("embeddings.word_embeddings.weight")[3] += 0.5
    with pytest.raises(GoldenTokensDiffer, match="the vector of golden text 1 is not that of the first start"):
        executor.verify()


def test_weights_that_are_no_numbers_are_found_at_the_start(tmp_path, make):
    path = write_tiny_encoder(tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["encoder.layer.1.output.dense.weight"][3, 3] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    executor = make(path)
    executor.init_device()
    with pytest.raises(ModelInvalid, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        executor.load_model()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size × pipeline_parallel_size is 2; allowed is 1"),
        ({"worker_cls": "own.Worker"}, "worker_cls is 'own.Worker'; allowed is auto"),
        ({"load_format": "sharded_state"}, "load_format is sharded_state; allowed are auto, dummy"),
        ({"enable_lora": True}, "enable_lora is set; allowed are models without adapters"),
        ({"speculation_method": "ngram"}, "speculation_method is ngram; allowed is off"),
        ({"kv_store_dir": "/kv"}, "kv_store_dir is '/kv'; allowed is none, for there are no blocks"),
        ({"compile_sizes": (1,)}, "compile_sizes is set; allowed is none"),
    ],
)
def test_what_vectors_are_not_made_with_is_refused_by_name(model, settings, why):
    with pytest.raises(InvalidSettings, match=why):
        task_of(EngineSettings(model=str(model), **settings), {})


def test_memory_that_the_largest_pass_does_not_fit_is_told_with_the_knobs(model, make):
    executor = make(model, memory_limit_bytes=1 << 20)
    executor.init_device()
    executor.load_model()
    with pytest.raises(InsufficientMemory, match=r"exceed the 0\.9 MiB .*raise the memory limit.*maxNumBatchedTokens"):
        executor.determine_num_available_blocks()
    assert executor.get_memory_report().weights_bytes > 0


def test_a_worker_that_makes_vectors_saves_no_shards_and_keeps_no_blocks(model, make):
    executor = start(make(model))
    with pytest.raises(InvalidArgument, match="read from its own files only"):
        executor.save_sharded_state("/somewhere")
    with pytest.raises(InvalidArgument, match="kept_blocks has 3; a worker without cached prefixes has none to keep"):
        executor.sleep(1, TAGS, [3])


class Told:
    """A controller over a real model, and what it said."""

    def __init__(self, executor):
        self.said = []
        self.controller = Controller(executor._settings, executor, send=self.said.append, clock=ManualClock())
        self.controller.start()

    def command(self, command):
        self.controller.handle(CommandRequest(1, command))
        return next(said for said in reversed(self.said) if isinstance(said, CommandResult))

    def pooled(self, texts):
        """Return the vectors of these texts, in as many steps as they take: one computes for milliseconds only."""
        start = len(self.said)
        self.controller.handle(AddPooling("a", texts))
        while not (pooled := [p for said in self.said[start:] if isinstance(said, StepOutputs) for p in said.pooled]):
            self.controller.step()
        return pooled[0].vectors

    @property
    def state(self):
        return next(said.state for said in reversed(self.said) if isinstance(said, EngineStatus))


def test_the_controller_agrees_on_no_block_serves_sleeps_and_wakes(model, make):
    told = Told(make(model))
    assert "num_gpu_blocks is 3; allowed is 0" in told.command(commands.InitializeCache(3)).error_message
    assert told.state is State.PROFILED
    assert told.command(commands.InitializeCache(0)).error_message == ""
    vectors = []
    for _ in range(2):
        vectors.append(
            [np.frombuffer(vector, "<f4").tolist() for vector in told.pooled([list(text) for text in TEXTS])]
        )
        assert told.command(commands.Sleep(2)).error_message == ""
        assert told.state is State.ASLEEP
        assert told.command(commands.WakeUp()).error_message == ""
    assert told.state is State.READY
    assert vectors[0] == vectors[1]
    assert np.linalg.norm(vectors[0][0]) == pytest.approx(1)


def test_a_token_that_the_model_has_no_row_for_fails_its_call_alone(model, make):
    told = Told(make(model))
    told.command(commands.InitializeCache(0))
    told.controller.handle(AddPooling("bad", [[1], [2, 999]]))
    assert told.said[-1].failed == {"bad": "inputs[1] has 999; allowed are ids below the vocabulary size 260"}


def test_a_model_of_nothing_but_infinities_does_not_start(tmp_path, make):
    path = write_tiny_encoder(tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.weight"][:] = 3e38
    tensors["encoder.layer.1.output.LayerNorm.bias"][:] = 3e38
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    executor = make(path)
    executor.init_device()
    executor.load_model()
    executor.determine_num_available_blocks()
    with pytest.raises(LogitsNotFinite, match="the vectors of the model's golden texts are not finite"):
        executor.initialize_cache(0, 0)
