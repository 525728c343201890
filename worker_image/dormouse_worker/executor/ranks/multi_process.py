"""The executor of a group: every rank is a process of its own, here or in another pod; this one holds the scheduler.

Rank 0 too: so the leader always sees who is gone or hangs, even where rank 0 waits in a collective. Errors name ranks.
A GroupBroken is for good: the process ends, and a new one begins with a new group.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.commands import LIGHTEST, TAGS
from dormouse_worker.common.errors import (
    Damaged,
    GroupBroken,
    InsufficientMemory,
    InvalidSettings,
    RanksDisagree,
)
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.group import GroupPlace
from dormouse_worker.common.ipc import MadeTokenizer, MemoryReport, ModelInfo, RankStatus
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation, Prepared
from dormouse_worker.engine.validation import check_settings
from dormouse_worker.executor.ranks import agreement
from dormouse_worker.executor.ranks.agreement import RankFailed, by_name, require_same, to_error
from dormouse_worker.executor.ranks.gathering import gather
from dormouse_worker.executor.ranks.group import RankGroup, Replies
from dormouse_worker.executor.ranks.messages import Answer
from dormouse_worker.executor.ranks.spawn import LocalRanks
from dormouse_worker.executor.single_process import converted_tokenizer
from dormouse_worker.executor.worker.wrapper import worker_class_of
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.task_files import task_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


class MultiProcessExecutor:
    """Implements `engine.executor.Executor`, and `StagedExecutor`, with rank processes."""

    def __init__(
        self,
        settings: EngineSettings,
        environ: Mapping[str, str],
        place: GroupPlace,
        *,
        local: LocalRanks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare names only; processes are started by `init_device`."""
        self._settings = settings
        self._environ = environ
        self._place = place
        self._clock = clock
        self.local = local or LocalRanks()
        self._layout = layout = Layout(settings.tensor_parallel_size, settings.pipeline_parallel_size)
        self._sampler = next(r for r in range(layout.world_size) if Layout(layout.tensor, layout.pipeline, r).samples)
        self._group: RankGroup | None = None
        self._reports: dict[int, MemoryReport] = {}
        self._untold: list[SampledToken] = []  # all ranks hear of them with the next batch
        self._asleep: tuple[int, frozenset[str]] = (0, frozenset())  # level and tags

    def __repr__(self) -> str:
        return f"MultiProcessExecutor({self._group!r}, {self.local!r})"

    def init_device(self) -> None:
        """See `Executor`. Looks at the model's files first, starts the ranks of this pod and waits for the others."""
        check_settings(self._settings)
        worker_class_of(self._settings, self._environ)
        files = check_model_files(self._settings.model_path, self._settings.load_format, self._layout)
        task_of(self._settings, files.config)
        connections = gather(self._settings, self._environ, self._place, self.local, self._clock)
        timeout_s = self._place.rank_timeout_s
        self._group = RankGroup(connections, self.local, self._clock, rank_timeout_s=timeout_s)
        try:
            self._all("init_device")
        except RankFailed as error:  # they could not meet: another attempt may do
            raise GroupBroken(str(error)) from error

    def load_model(self) -> None:
        """See `Executor`."""
        self._all("load_model")

    def get_model_info(self) -> ModelInfo:
        """See `Executor`."""
        return agreement.group_model(self._values(self._all("get_model_info"), ModelInfo))

    def convert_tokenizer(self) -> MadeTokenizer:
        """See `Executor`."""
        return converted_tokenizer(self._settings)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `Executor`. What the poorest rank has room for; RanksDisagree where their blocks are not alike."""
        replies = self._ready().call("determine_num_available_blocks")
        self._note_reports(replies)
        self._raise_failed(replies)
        agreement.require_alike({self._name(rank): report for rank, report in self._reports.items()})
        return agreement.fewest_blocks(self._values(replies, tuple[int, int]).values())

    def get_memory_report(self) -> MemoryReport | None:
        """See `Executor`. Of the rank with the fewest blocks; None, too, while there is no group."""
        return agreement.group_report(self._reports.values()) if self._reports else None

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """See `Executor`."""
        pods = self._group.pods if self._group is not None else {}
        return tuple(RankStatus(rank, pod, self._reports.get(rank)) for rank, pod in pods.items())

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`."""
        self._untold = []
        self._all("initialize_cache", num_gpu_blocks, num_cpu_blocks)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `Executor`. Raises RanksDisagree: tables are the same on every rank."""
        return require_same(self._values(self._all("layer_windows"), tuple[int | None, ...]), "layer groups")

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor`. The rank that samples compiles it when the sequence comes, and waits where it must."""
        del grammar
        return Prepared()

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `Executor`."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `StagedExecutor`. A batch that some ranks compute and others do not breaks the group."""
        told, self._untold = self._untold, []
        return partial(self._collect, self._ready().send_step(batch, told))

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`. Ranks hear of a token with a batch that is sent after it has come."""
        return False

    def _collect(self, call_id: int) -> ModelOutput:
        replies = self._ready().collect_step(call_id)
        if replies.failed and (replies.silent or replies.done):
            raise self._out_of_step(replies)
        self._raise_failed(replies)
        output = self._value(replies.answers[self._sampler], ModelOutput)
        self._untold += [
            SampledToken(token.request_id, token.token_id, forced=token.forced) for token in output.sampled
        ]
        return output

    def start_profile(self, directory: str) -> None:
        """See `Executor`. Where one rank refuses, the others stop again."""
        replies = self._ready().call("start_profile", directory)
        if replies.failed and replies.done:
            self._ready().call("end_profile", ranks=replies.done)
        self._raise_failed(replies)

    def stop_profile(self) -> str:
        """See `Executor`."""
        return self._value(self._all("stop_profile").answers[0], str)

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor`. Where one rank refuses, those that sleep are woken again."""
        self._untold = []
        self._all("end_profile")
        replies = self._ready().call("sleep", level, list(tags), list(kept_blocks))
        deepest, asleep = self._asleep
        if replies.failed:
            newly = [tag for tag in TAGS if tag in tags and tag not in asleep]
            self._take_back(replies, "undo_sleep", newly)
        self._asleep = max(level, deepest), asleep | set(tags)
        return agreement.group_sleep(self._values(replies, SleepReport).values())

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor`. Reserved on every rank or on none; returns what the rank lacks that lacks most."""
        replies = self._ready().call("prepare_wake_up", list(tags))
        if replies.failed:
            self._take_back(replies, "sleep", LIGHTEST, list(tags))
        missing = {rank: self._value(answer, int) for rank, answer in replies.answers.items()}
        lacking = {rank: num_bytes for rank, num_bytes in missing.items() if num_bytes}
        if lacking:
            logger.warning("the wake lacks %s bytes by rank", lacking)
            self._undo(tuple(missing.keys() - lacking.keys()), "sleep", LIGHTEST, list(tags))
        return max(missing.values())

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`. In two phases; where one rank refuses in the second one, the others sleep again."""
        missing_bytes = self.prepare_wake_up(tags)
        if missing_bytes:
            raise InsufficientMemory(f"a rank lacks {missing_bytes} bytes for the wake; all sleep as before")
        self._untold = []
        replies = self._ready().call("wake_up", list(tags))
        if any(answer.error and issubclass(self._kind(answer), Damaged) for answer in replies.answers.values()):
            self._undo(replies.done, "shutdown")
            self._raise_failed(replies)
        level, asleep = self._asleep
        if replies.failed:
            self._take_back(replies, "sleep", level, list(tags))
        left = asleep - set(tags)
        self._asleep = (level if left else 0), left
        return agreement.group_wake(self._values(replies, WakeReport).values())

    def add_lora(self, path: str, digest: str = "") -> AdapterInfo:
        """See `Executor`. A group has none."""
        del digest
        raise InvalidSettings(f"{path}: adapters are computed by one rank alone, and this group has several")

    def remove_lora(self, digest: str) -> None:
        """See `Executor`. There are none."""

    def list_loras(self) -> AdapterList:
        """See `Executor`. There are none."""
        return AdapterList([])

    def save_sharded_state(self, directory: str) -> None:
        """See `Executor`. Every rank writes its own file."""
        self._all("save_sharded_state", directory)

    def check_ranks(self) -> None:
        """See `Executor`."""
        if self._group is not None:
            self._group.check_alive()

    def verify(self) -> None:
        """See `Executor`."""
        self._untold = []
        self._all("verify")

    def check_health(self) -> None:
        """See `Executor`. Without a group there is nothing that could be ill."""
        if self._group is not None:
            self._all("check_health")

    def shutdown(self) -> None:
        """See `Executor`. Ends the rank processes; safe before `init_device`, and a second time."""
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(GroupBroken):
                group.call("end_profile")
                group.call("shutdown")
            group.close()
        self.local.end()

    def abandon(self) -> None:
        """See `Executor`."""
        group, self._group = self._group, None
        if group is not None:
            group.close()
        self.local.end(grace_s=0.0)

    def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every rank's worker by name, also one of its extension; return the answers by rank.

        Arguments and answers are what MessagePack can say. Raises InvalidArgument if there is no such method, and
        whatever it raises.
        """
        replies = self._ready().call(method, *args, **kwargs)
        self._raise_failed(replies)
        return [self._value(replies.answers[rank], object) for rank in sorted(replies.answers)]

    def _all(self, method: str, *args: Any) -> Replies:
        """Have all ranks carry out a command; raise the error of the first that failed."""
        replies = self._ready().call(method, *args)
        self._raise_failed(replies)
        return replies

    def _raise_failed(self, replies: Replies) -> None:
        if replies.failed:
            rank = agreement.culprit(replies.failed)
            raise to_error(self._name(rank), replies.failed[rank])

    def _take_back(self, replies: Replies, method: str, *args: Any) -> None:
        """Undo what some ranks did and others refused, then raise what these said."""
        if replies.silent:
            raise self._out_of_step(replies)
        self._undo(replies.done, method, *args)
        self._raise_failed(replies)

    def _undo(self, ranks: tuple[int, ...], method: str, *args: Any) -> None:
        """Have these ranks go back. Raises RanksDisagree if one cannot: nobody knows then what is awake."""
        if not ranks:
            return
        for rank, answer in self._ready().call(method, *args, ranks=ranks).failed.items():
            raise RanksDisagree(f"{self._name(rank)}: cannot go back by {method}: {answer.error}: {answer.message}")

    def _out_of_step(self, replies: Replies) -> RanksDisagree:
        rank = agreement.culprit(replies.failed)
        answer = replies.failed[rank]
        others = "others succeeded" if replies.done else "others wait for it"
        return RanksDisagree(f"{self._name(rank)}: {answer.error}: {answer.message}; {others}")

    def _note_reports(self, replies: Replies) -> None:
        """Remember what the profile measured, also where it ended with too little memory."""
        if not replies.silent:
            reports = self._ready().call("get_memory_report")
            known = {
                rank: msgspec.msgpack.decode(answer.value, type=MemoryReport | None)
                for rank, answer in reports.answers.items()
            }
            self._reports = {rank: report for rank, report in sorted(known.items()) if report is not None}

    def _kind(self, answer: Answer) -> type[Exception]:
        return type(to_error("", answer))

    def _value(self, answer: Answer, kind: type[T]) -> T:
        return msgspec.msgpack.decode(answer.value, type=kind)

    def _values(self, replies: Replies, kind: type[T]) -> dict[str, T]:
        return by_name(replies.answers, self._name, kind)

    def _name(self, rank: int) -> str:
        return self._ready().name(rank)

    def _ready(self) -> RankGroup:
        assert self._group is not None, "init_device comes first"
        return self._group
