"""For tests of groups: a rank's worker that computes without torch and does what a file tells it, by rank.

`ranks.json` in the model's directory: {"1": {"refuse": ["wake_up"], "report": {"num_gpu_blocks": 7}, …}}.
It is read before every verb, so that a test may change its mind.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.common.ipc import MemoryReport, ModelInfo
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.testing import make_report
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.executor.worker.base import WorkerBase

FAKE_RANK = f"{__name__}.FakeRankWorker"
ORDERS = "ranks.json"
FOREVER_S = 3600.0
T = TypeVar("T")


def write_group_model(directory: Path, **orders: Any) -> Path:
    """Write what passes for a model where nothing is loaded, and what the ranks shall do."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    order_ranks(directory, **orders)
    return directory


def order_ranks(directory: Path, **orders: Any) -> None:
    """Tell ranks what to do from now on: rank1={"refuse": ["sleep"]}."""
    part = directory / f"{ORDERS}.part"
    part.write_text(json.dumps({name.removeprefix("rank"): order for name, order in orders.items()}))
    part.replace(directory / ORDERS)


def group_settings(directory: Path, tensor: int = 2, pipeline: int = 1, **overrides: Any) -> EngineSettings:
    """Return the settings of a group of fake ranks."""
    fields: dict[str, Any] = {
        "model": str(directory),
        "load_format": "dummy",
        "worker_cls": FAKE_RANK,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "block_size": 4,
        "threads": 1,
    }
    return EngineSettings(**{**fields, **overrides})


class FakeRankWorker(WorkerBase):
    """Every rank computes the next token by itself from what its own cache holds; only the sampling one tells it.

    All must hear of exactly this token before the sequence goes on, or they raise: a wrong or missing one is found out.
    """

    def __init__(self, settings: EngineSettings, rank: int) -> None:
        super().__init__(settings, rank)
        self._layout = Layout(settings.tensor_parallel_size, settings.pipeline_parallel_size, rank)
        self._fake = FakeExecutor(make_report(rank=rank, **self._order().get("report", {})))
        self._expected: dict[str, int] = {}  # by request: the token that nobody has told yet
        self.asleep: set[str] = set()
        self.reserved: set[str] = set()

    def init_device(self) -> None:
        """See `WorkerBase`."""
        self._verb("init_device", lambda: None)

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._verb("load_model", lambda: None)

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        return ModelInfo(num_parameters=1, dtype=self._order().get("dtype", "float32"), load_bytes=5, load_seconds=1.0)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        return self._verb("determine_num_available_blocks", self._fake.determine_num_available_blocks)

    def get_memory_report(self) -> MemoryReport | None:
        """See `WorkerBase`."""
        return self._fake.get_memory_report()

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`."""
        return tuple(self._order().get("windows", (None,)))

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`."""
        self._verb("initialize_cache", lambda: self._fake.initialize_cache(num_gpu_blocks, num_cpu_blocks))

    def append_sampled(self, sampled: Sequence[SampledToken]) -> None:
        """See `WorkerBase`."""
        for token in sampled:
            if self._expected.pop(token.request_id, None) != token.token_id:
                raise AssertionError(f"told of {token}, which was not computed")

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        return self._verb("execute_model", lambda: self._execute(batch))

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `WorkerBase`."""
        del level, kept_blocks

        def fall_asleep() -> SleepReport:
            self.asleep |= set(tags)
            self.reserved.clear()
            return SleepReport(100, 10 + self.rank, 1, {"drop": float(self.rank)})

        return self._verb("sleep", fall_asleep)

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `WorkerBase`."""

        def reserve() -> int:
            missing: int = self._order().get("missing_bytes", 0)
            if not missing:
                self.reserved |= set(tags)
            return missing

        return self._verb("prepare_wake_up", reserve)

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""

        def awake() -> WakeReport:
            self.asleep -= set(tags)
            self.reserved.clear()
            return WakeReport({"verify": float(self.rank)})

        return self._verb("wake_up", awake)

    def undo_sleep(self, tags: Collection[str]) -> None:
        """See `WorkerBase`."""
        self._verb("undo_sleep", lambda: self.asleep.difference_update(tags))

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`."""
        (Path(directory) / f"rank{self.rank}").touch()

    def verify(self) -> None:
        """See `WorkerBase`. Knows no sequence any more."""
        self._verb("verify", self._expected.clear)

    def check_health(self) -> None:
        """See `WorkerBase`."""
        self._verb("check_health", lambda: None)

    def shutdown(self) -> None:
        """See `WorkerBase`."""

    def facts(self) -> dict[str, Any]:
        """Return what only this process knows; for `collective_rpc`."""
        where = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
        names = (*where, "DORMOUSE_GROUP_TIMEOUT_S")
        return {
            "pid": os.getpid(),
            "asleep": sorted(self.asleep),
            "reserved": sorted(self.reserved),
            "variables": {name: os.environ.get(name, "") for name in names},
        }

    def something_unsayable(self) -> object:
        """Return what no message can carry."""
        return object()

    def _execute(self, batch: Batch) -> ModelOutput:
        if batch.is_fresh:
            self._expected.clear()
        if untold := self._expected.keys() & set(batch.request_ids):
            raise AssertionError(f"never told of the tokens of {untold}")
        output = self._fake.execute_model(batch)
        self._expected |= {token.request_id: token.token_id for token in output.sampled}
        return output if self._layout.samples else ModelOutput([])

    def _verb(self, name: str, act: Callable[[], T]) -> T:
        order = self._order()
        if name in order.get("refuse", ()):
            raise InsufficientMemory(f"{name} shall be refused")
        if name in order.get("crash", ()):
            raise KeyError(name)
        if name in order.get("die", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if name in order.get("hang", ()):
            time.sleep(FOREVER_S)
        return act()

    def _order(self) -> dict[str, Any]:
        file = self.settings.model_path / ORDERS
        orders = msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]]) if file.exists() else {}
        return orders.get(str(self.rank), {})
