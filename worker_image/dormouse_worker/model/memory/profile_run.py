"""How many blocks fit: the largest batches measured, or what was measured at an earlier start verified."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.sides import Sides
from dormouse_worker.engine.batch import Batch
from dormouse_worker.files.model_digest import digest_model
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.memory.arithmetic import Limit, Measured, make_report
from dormouse_worker.model.memory.profile import profile_batches, sampling_once
from dormouse_worker.model.memory.profile_cache import (
    ProfileCache,
    ProfileKey,
    Remembered,
    find_difference,
    software_versions,
)
from dormouse_worker.model.memory.resident import Meter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """What of a loaded model decides how much memory it takes."""

    weights_bytes: int
    block_bytes: int
    max_model_len: int
    num_groups: int  # of layers that see the same tokens
    image_rows: int = 0  # of encoded images, that are kept
    images_are_whole: bool = False  # an image's tokens see each other
    takes_soft_prompts: bool = False
    samples_once: bool = False  # what logits take is kept from pass to pass
    draft_bytes: int = 0  # of the weights, the draft model's
    graph_bytes: int = 0  # of CUDA graphs, estimated: see `memory.estimate_graph_bytes`
    sides: Sides | None = None  # where an encoder reads the prompts


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    """Where it runs."""

    rank: int
    device: str  # the report's name of it
    threads: int  # of computation on the CPU
    layout: Layout = field(default_factory=Layout)  # its place in its group


def profile_memory(
    settings: EngineSettings, rank: ProfiledRank, model: ProfiledModel, meter: Meter, run: Callable[[list[Batch]], None]
) -> MemoryReport:
    """Return the report; see `fit.require_fit` for whether it can serve.

    `run` computes batches on a cache of one block, made for this call and given up after it, so that nothing but
    activations is added.
    """
    limit = meter.limit()
    batches = profile_batches(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=model.max_model_len,
        block_size=settings.block_size,
        num_groups=model.num_groups,
        takes_soft_prompts=model.takes_soft_prompts,
        sides=model.sides,
    )
    if model.samples_once:
        batches = sampling_once(batches)

    def measure() -> Measured:
        return meter.measure(
            model.weights_bytes,
            warm_up=lambda: run(batches[-1:]),
            peak=lambda: run(batches),
            graph_bytes=model.graph_bytes,
        )

    if settings.profile_cache:
        key = make_key(settings, rank)
        measured = recall(ProfileCache(Path(settings.profile_cache)), key, limit, model.weights_bytes, meter, measure)
    else:
        measured = measure()
    report = make_report(
        settings,
        limit,
        measured,
        device=rank.device,
        block_bytes=model.block_bytes,
        max_model_len=model.max_model_len,
        rank=rank.rank,
    )
    return msgspec.structs.replace(
        report,
        image_rows=model.image_rows,
        images_are_whole=model.images_are_whole,
        draft_bytes=model.draft_bytes,
    )


def make_key(settings: EngineSettings, rank: ProfiledRank) -> ProfileKey:
    """Return the name of this worker's profile. Reads the headers of the model's files.

    What a grant says is no part of it: the same is measured, and is held against each start's bounds.
    """
    ungranted = msgspec.structs.replace(
        settings,
        device_memory_budget_bytes=0,
        device_memory_reserve_bytes=0,
        device_memory_sharers=1,
        expected_device="",
    )
    digest = digest_model(check_model_files(settings.model_path, settings.load_format, rank.layout))
    if settings.speculation_model:
        digest += digest_model(check_model_files(Path(settings.speculation_model), settings.load_format))
    return ProfileKey(
        model_digest=digest,
        settings_digest=ungranted.digest(),
        device=f"{rank.device}, rank {rank.rank}, {rank.threads} threads",
        versions=software_versions(),
    )


def recall(
    cache: ProfileCache,
    key: ProfileKey,
    limit: Limit,
    weights_bytes: int,
    meter: Meter,
    measure: Callable[[], Measured],
) -> Measured:
    """Return what is remembered if it still holds, with the seconds that verifying took; else measure and remember."""
    started_s = time.monotonic()
    remembered = cache.get(key)
    if remembered is not None:
        difference = find_difference(
            remembered,
            weights_bytes=weights_bytes,
            total_bytes=limit.total_bytes,
            rest_bytes=meter.rest_bytes(),
            free_bytes=meter.free_bytes(),
        )
        if not difference:
            logger.info("the profile of an earlier start holds: %s", cache.path(key))
            return dataclasses.replace(remembered.measured, seconds=time.monotonic() - started_s)
        logger.info("the profile of an earlier start does not apply, measuring again: %s", difference)
    measured = measure()
    cache.put(key, Remembered(measured, limit.total_bytes))
    return measured
