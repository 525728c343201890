"""The executor of a group: every rank is a process of its own, here or in another pod; this one holds the scheduler.

Rank 0 too: so the leader always sees who is gone or hangs, even where rank 0 waits in a collective. Errors name ranks.
A GroupBroken is for good: the process ends, and a new one begins with a new group.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import GroupBroken
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
from dormouse_worker.executor.ranks.agreement import RankFailed, require_same
from dormouse_worker.executor.ranks.gathering import gather, meeting_place
from dormouse_worker.executor.ranks.group import RankGroup, Replies
from dormouse_worker.executor.ranks.group_adapters import GroupAdapters
from dormouse_worker.executor.ranks.group_sleep import GroupSleep
from dormouse_worker.executor.ranks.messages import Answer
from dormouse_worker.executor.ranks.orders import Orders, decode_value
from dormouse_worker.executor.ranks.spawn import LocalRanks
from dormouse_worker.executor.single_process import converted_tokenizer
from dormouse_worker.executor.worker.wrapper import worker_class_of
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.task_files import task_of


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
        self._orders: Orders | None = None  # from `init_device` to the end
        self._sleeping: GroupSleep | None = None
        self._adapters: GroupAdapters | None = None
        self._reports: dict[int, MemoryReport] = {}
        self._untold: list[SampledToken] = []  # all ranks hear of them with the next batch

    def __repr__(self) -> str:
        return f"MultiProcessExecutor({self._orders!r}, {self.local!r})"

    def init_device(self) -> None:
        """See `Executor`. Looks at the model's files first, starts the ranks of this pod and waits for the others."""
        check_settings(self._settings)
        worker_class_of(self._settings, self._environ)
        files = check_model_files(as_directory(self._settings).model_path, self._settings.load_format, self._layout)
        task_of(self._settings, files.config)
        with meeting_place(self._settings, self._place) as place:
            connections = gather(self._settings, self._environ, place, self.local, self._clock)
            group = RankGroup(connections, self.local, self._clock, rank_timeout_s=place.rank_timeout_s)
            self._orders = Orders(group)
            self._sleeping, self._adapters = GroupSleep(self._orders), GroupAdapters(self._orders)
            try:
                self._orders.require("init_device")
            except RankFailed as error:  # they could not meet: another attempt may do
                raise GroupBroken(str(error)) from error

    def load_model(self) -> None:
        """See `Executor`."""
        self._ready().require("load_model")

    def get_model_info(self) -> ModelInfo:
        """See `Executor`."""
        return agreement.group_model(self._ready().values(self._ready().require("get_model_info"), ModelInfo))

    def convert_tokenizer(self) -> MadeTokenizer:
        """See `Executor`."""
        return converted_tokenizer(self._settings)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `Executor`. What the poorest rank has room for; RanksDisagree where their blocks are not alike."""
        replies = self._ready().group.call("determine_num_available_blocks")
        self._note_reports(replies)
        self._ready().raise_failed(replies)
        agreement.require_alike({self._ready().group.name(rank): report for rank, report in self._reports.items()})
        return agreement.fewest_blocks(self._ready().values(replies, tuple[int, int]).values())

    def get_memory_report(self) -> MemoryReport | None:
        """See `Executor`. Of the rank with the fewest blocks; None, too, while there is no group."""
        return agreement.group_report(self._reports.values()) if self._reports else None

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """See `Executor`."""
        pods = self._orders.group.pods if self._orders is not None else {}
        return tuple(RankStatus(rank, pod, self._reports.get(rank)) for rank, pod in pods.items())

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`."""
        self._untold = []
        self._ready().require("initialize_cache", num_gpu_blocks, num_cpu_blocks)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `Executor`. Raises RanksDisagree: tables are the same on every rank."""
        return require_same(
            self._ready().values(self._ready().require("layer_windows"), tuple[int | None, ...]), "layer groups"
        )

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
        return partial(self._collect, self._ready().group.send_step(batch, told))

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`. Ranks hear of a token with a batch that is sent after it has come."""
        return False

    def _collect(self, call_id: int) -> ModelOutput:
        replies = self._ready().group.collect_step(call_id)
        if replies.failed and (replies.silent or replies.done):
            raise self._ready().out_of_step(replies)
        self._ready().raise_failed(replies)
        output = decode_value(replies.answers[self._sampler], ModelOutput)
        self._untold += [
            SampledToken(token.request_id, token.token_id, forced=token.forced) for token in output.sampled
        ]
        return output

    def start_profile(self, directory: str) -> None:
        """See `Executor`. Where one rank refuses, the others stop again."""
        replies = self._ready().group.call("start_profile", directory)
        if replies.failed and replies.done:
            self._ready().group.call("end_profile", ranks=replies.done)
        self._ready().raise_failed(replies)

    def stop_profile(self) -> str:
        """See `Executor`."""
        return decode_value(self._ready().require("stop_profile").answers[0], str)

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor`. Where one rank refuses, those that sleep are woken again."""
        self._untold = []
        self._ready().require("end_profile")
        return self._sleep().sleep(level, tags, kept_blocks)

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor`. Reserved on every rank or on none; returns what the rank lacks that lacks most."""
        return self._sleep().prepare(tags)

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`. In two phases; where one rank refuses in the second one, the others sleep again."""
        self._untold = []
        return self._sleep().wake(tags)

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor`. Loaded by every rank or by none."""
        return self._with_adapters().add(path, digest, seconds)

    def remove_lora(self, digest: str) -> None:
        """See `Executor`."""
        self._with_adapters().remove(digest)

    def list_loras(self) -> AdapterList:
        """See `Executor`."""
        return self._with_adapters().list()

    def save_sharded_state(self, directory: str) -> None:
        """See `Executor`. Every rank writes its own file."""
        self._ready().require("save_sharded_state", directory)

    def check_ranks(self) -> None:
        """See `Executor`."""
        if self._orders is not None:
            self._orders.group.check_alive()

    def verify(self) -> None:
        """See `Executor`."""
        self._untold = []
        self._ready().require("verify")

    def check_health(self) -> None:
        """See `Executor`. Without a group there is nothing that could be ill."""
        if self._orders is not None:
            self._orders.require("check_health")

    def shutdown(self) -> None:
        """See `Executor`. Ends the rank processes; safe before `init_device`, and a second time."""
        orders, self._orders = self._orders, None
        if orders is not None:
            with contextlib.suppress(GroupBroken):
                orders.group.call("end_profile")
                orders.group.call("shutdown")
            orders.group.close()
        self.local.end()

    def abandon(self) -> None:
        """See `Executor`."""
        orders, self._orders = self._orders, None
        if orders is not None:
            orders.group.close()
        self.local.end(grace_s=0.0)

    def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every rank's worker by name, also one of its extension; return the answers by rank.

        Arguments and answers are what MessagePack can say. Raises InvalidArgument if there is no such method, and
        whatever it raises.
        """
        replies = self._ready().group.call(method, *args, **kwargs)
        self._ready().raise_failed(replies)
        return [decode_value(replies.answers[rank], object) for rank in sorted(replies.answers)]

    def _note_reports(self, replies: Replies) -> None:
        """Remember what the profile measured, also where it ended with too little memory."""
        if not replies.silent:
            reports = self._ready().group.call("get_memory_report")
            known = {rank: _report(answer) for rank, answer in sorted(reports.answers.items())}
            self._reports = {rank: report for rank, report in known.items() if report is not None}

    def _ready(self) -> Orders:
        assert self._orders is not None, "init_device comes first"
        return self._orders

    def _with_adapters(self) -> GroupAdapters:
        assert self._adapters is not None, "init_device comes first"
        return self._adapters

    def _sleep(self) -> GroupSleep:
        assert self._sleeping is not None, "init_device comes first"
        return self._sleeping


def _report(answer: Answer) -> MemoryReport | None:
    report: MemoryReport | None = msgspec.msgpack.decode(answer.value, type=MemoryReport | None)
    return report
