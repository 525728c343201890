"""What a model for vectors, labels or scores makes of a text, by its files, and how long a text may be. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import HEADS
from dormouse_worker.files.head_files import HeadFiles, read_head
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.task_files import Pooling, read_pooling, task_of


@dataclass(frozen=True, slots=True)
class Made:
    """What a model makes of a text, by its files."""

    task: str
    pooling: Pooling  # of a vector
    head: HeadFiles | None = None  # of a model that classifies or scores


def read_made(settings: EngineSettings, files: ModelFiles) -> Made:
    """Return what the files say. Raises ModelInvalid, InvalidSettings."""
    task = task_of(settings, files.config)
    if task in HEADS:
        return Made(task, Pooling(), read_head(files.path, files.config))
    return Made(task, read_pooling(files.path, files.config))


def resolve_length(limit: int | None, settings: EngineSettings, made: Made) -> int:
    """Return the longest text in tokens: as set, else as the model's files say, at most a pass. Raises InvalidSettings.

    `limit` = positions that the model has for a text, None where it has any number. A text is computed in one pass: its
    tokens may see each other.
    """
    wanted, most = settings.max_model_len, settings.max_num_batched_tokens
    if limit is not None and wanted > limit:
        raise InvalidSettings(f"maxModelLen {wanted} is above the model's limit of {limit} positions; lower it")
    if wanted > most:
        raise InvalidSettings(
            f"maxModelLen {wanted} is above maxNumBatchedTokens {most}, and a text is computed in one pass where the "
            f"task is {made.task}; raise maxNumBatchedTokens or lower maxModelLen"
        )
    return wanted or min(length for length in (limit, made.pooling.max_length, most) if length)
