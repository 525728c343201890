"""What a rank's worker is set up with: its place among the others, its threads, who attends, what is profiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from dormouse_worker.common.errors import Internal, InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch
from dormouse_worker.model.attention.interface import AttentionBackend, BackendSizes
from dormouse_worker.model.attention.select import select_backend
from dormouse_worker.model.cache_blocks import CacheBlocks, make_realm
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.memory.profile_run import ProfiledModel
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.parallel.start import connect_from_environment
from dormouse_worker.model.promised_tokens import TokenCopier
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.sleep import SleepPart


class Draft(Protocol):
    """A model or head whose layers lie behind another one's, its target's, in its cache."""

    @property
    def target(self) -> LoadedModel:
        """Return the target as it is to be used from now on."""

    @property
    def words(self) -> str:
        """Return who drafts, and by which path, or why nobody does."""

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its weights."""

    @property
    def sleep_part(self) -> SleepPart:
        """Return what sleeps and wakes with the target's weights."""

    @property
    def facts(self) -> tuple[object, ...]:
        """Return what the kept part of a block depends on besides the target's. Raises OSError."""

    def attach(self, runner: ModelRunner, cache: KVCache, host_cache: KVCache) -> None:
        """Let a runner over these caches propose what it says."""

    def run(self, batches: Sequence[Batch], cache: KVCache, host_cache: KVCache) -> None:
        """Run what passes of a profile leave to it, behind them."""

    def part_of_target(self, cache: KVCache) -> KVCache:
        """Return what is kept of the cache beyond this process."""

    def forget(self, block_ids: Sequence[int]) -> None:
        """These blocks came from elsewhere, with the part that is kept."""

    def close(self) -> None:
        """Give the memory back."""


def make_layout(settings: EngineSettings, rank: int) -> Layout:
    """Return the rank's place. Raises InvalidSettings if the settings have no such rank."""
    try:
        return Layout(settings.tensor_parallel_size, settings.pipeline_parallel_size, rank)
    except ValueError as error:
        raise InvalidSettings(str(error)) from error


def connect(layout: Layout, device: torch.device) -> Communicator:
    """Return the way to the other ranks, which have to come too; there may be none. Raises what connecting raises."""
    return ALONE if layout.world_size == 1 else connect_from_environment(layout, device)


def check_sum(device: torch.device) -> None:
    """Compute one small sum. Raises Internal if it is wrong, and what a lost device raises."""
    total = float(torch.ones(8, device=device).sum())
    if total != 8:
        raise Internal(f"the device adds eight ones to {total}")


def profiled_model(model: LoadedModel, graph_bytes: int, draft_bytes: int = 0) -> ProfiledModel:
    """Return what of a loaded model decides how much memory it takes, with the weights of one that drafts beside it."""
    return ProfiledModel(
        weights_bytes=model.weights_bytes + draft_bytes,
        draft_bytes=draft_bytes,
        block_bytes=model.cache_spec.block_bytes,
        max_model_len=model.max_model_len,
        num_groups=len(model.cache_spec.groups),
        image_rows=model.image_rows,
        images_are_whole=model.images_are_whole,
        takes_soft_prompts=model.adapters is not None,
        graph_bytes=graph_bytes,
        sides=model.sides,
    )


def choose_backend(
    settings: EngineSettings, model: LoadedModel, device: torch.device, *, wants_graphs: bool
) -> AttentionBackend:
    """Return who attends in this model, on this device. Raises InvalidSettings."""
    sizes = BackendSizes(
        shapes=model.attention_shapes,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=model.max_model_len,
        num_groups=len(model.cache_spec.groups),
    )
    return select_backend(
        settings.attention_backend,
        sizes,
        device,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        wants_graphs=wants_graphs,
        is_alone=model.layout.world_size == 1,
    )


def stored_cache(
    settings: EngineSettings, model: LoadedModel, cache: KVCache, golden: object, draft: Draft | None = None
) -> CacheBlocks:
    """Return the cache as blocks of bytes that another process can go on with, if it would compute the same ones.

    A draft model's part is not among them: drafts change no token, and it computes that anew. A head's is.
    """
    if draft is not None:
        cache = draft.part_of_target(cache)
    of_draft = () if draft is None else draft.facts
    config = (settings.model_path / "config.json").read_bytes()
    layout = model.layout
    share = layout.tensor, layout.pipeline, layout.rank
    weights = sorted(model.weights.checksums.items())
    facts = config, share, weights, model.max_model_len, model.quantization, golden, *of_draft
    return CacheBlocks(cache, make_realm(cache.spec, *facts), None if draft is None else draft.forget)


def make_runner(
    model: LoadedModel,
    caches: tuple[KVCache, KVCache],
    backend: AttentionBackend,
    *,
    max_num_seqs: int,
    graphs: DecodeGraphs | None,
    communicator: Communicator,
    copier: TokenCopier | None,
) -> ModelRunner:
    """Return who runs batches over the caches of device and host; with a copier it runs ahead of the host."""
    runner = ModelRunner(model, *caches, backend, max_num_seqs=max_num_seqs, graphs=graphs, communicator=communicator)
    if copier is not None:
        runner.run_ahead(copier)
    return runner
