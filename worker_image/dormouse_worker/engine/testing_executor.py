"""A fake for tests of the engine: an executor that computes no model, and keeps tokens as a cache keeps its blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.commands import KV_CACHE, LIGHTEST
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import MadeTokenizer, MemoryReport, ModelInfo, RankStatus, TokenLogprobs
from dormouse_worker.engine.batch import Batch, ModelOutput, NewSequence, Proposals, SampledToken, ScheduledSequence
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation, Prepared
from dormouse_worker.engine.testing import ManualClock, make_report, next_token, see, visible_tokens
from dormouse_worker.engine.testing_drafts import FakeDraftModel
from dormouse_worker.engine.testing_images import FakeEncoder


@dataclass
class FakeSequence:
    """What the fake rank remembers of a sequence."""

    new: NewSequence
    tokens: list[int]
    tables: list[list[int]]


class FakeExecutor:
    """Implements `Executor` with a cache of token ids, kept by block as a real one keeps keys and values.

    It computes the next token from what the cache holds, so a wrong block table or start gives wrong tokens, and a
    block that was given back too early too. Records method names in `calls`; `fail_once[name]` is raised by the next
    call of that method.
    """

    def __init__(
        self,
        report: MemoryReport | None = None,
        clock: ManualClock | None = None,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        self.report = report or make_report()
        self.row_s = 0.0  # that each row of a pass takes
        self.missing_bytes = 0  # what the next preparation of a wake lacks
        self.calls: list[str] = []
        self.tokenizer_path = ""
        self.vocab_size = 0  # not told
        self.ranks: tuple[RankStatus, ...] = ()
        self.batches: list[Batch] = []
        self.fail_once: dict[str, Exception] = {}
        self.loras: dict[str, AdapterInfo] = {}
        self.num_lora_pieces = 1  # that each takes to be read
        self.lora_pieces: list[float] = []  # seconds of each so far
        self.lost_loras: dict[str, str] = {}  # digest → why
        self.not_finite: set[str] = set()  # requests whose logits are not finite from now on
        self.preparations: dict[str, Preparation] = {}  # grammar → who compiles it
        self.most_forced = 0  # tokens that bound requests get behind a sampled one: what the model would say there
        self.stuck: dict[str, str] = {}  # requests whose grammars leave no token from now on, and why
        self.unreadable: dict[bytes, str] = {}  # images that cannot be encoded from now on, and why
        self.encoder = FakeEncoder(self.report.image_rows)
        self.keeps_images = False  # over a light sleep
        self.draft_model = FakeDraftModel()
        self._windows = windows
        self._profiled = False
        self._clock = clock or ManualClock()
        self._sequences: dict[str, FakeSequence] = {}
        self._cache: dict[int, dict[int, int]] = {}
        self._host_cache: dict[int, dict[int, int]] = {}

    def init_device(self) -> None:
        """See `Executor`."""
        self._called("init_device")

    def load_model(self) -> None:
        """See `Executor`."""
        self._called("load_model")

    def get_model_info(self) -> ModelInfo:
        """See `Executor`."""
        self._called("get_model_info")
        return ModelInfo(num_parameters=1, dtype="float32", vocab_size=self.vocab_size)

    def convert_tokenizer(self) -> MadeTokenizer:
        """See `Executor`."""
        self._called("convert_tokenizer")
        return MadeTokenizer(self.tokenizer_path)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `Executor`."""
        self._profiled = True
        self._called("determine_num_available_blocks")
        return self.report.num_gpu_blocks, self.report.num_cpu_blocks

    def get_memory_report(self) -> MemoryReport | None:
        """See `Executor`."""
        return self.report if self._profiled else None

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`."""
        del num_gpu_blocks, num_cpu_blocks
        self._called("initialize_cache")

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `Executor`."""
        return self._windows

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor`: what the test says, else done at once."""
        self._called("prepare_grammar")
        return self.preparations.get(grammar.text, Prepared())

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `Executor`. Takes one second, and what rows take."""
        self._called("execute_model")
        self.batches.append(batch)
        self._clock.now_s += 1 + self.row_s * batch.num_tokens
        for request_id in tuple(self._sequences) if batch.is_fresh else batch.released:
            self._sequences.pop(request_id, None)
        for origin, target in batch.swap_out:
            self._host_cache[target] = dict(self._cache.get(origin, {}))
        for origin, target in batch.swap_in:
            self._cache[target] = dict(self._host_cache[origin])
        for new in batch.new:
            assert new.request_id not in self._sequences
            tokens = [*new.prompt_token_ids, *new.output_token_ids]
            self._sequences[new.request_id] = FakeSequence(new, tokens, [[] for _ in self._windows])
        encoded = self.encoder.encode(batch)
        for scheduled in batch.sequences:
            self._write(scheduled)
        prompts = {s.request_id: self._prompt_logprobs(s) for s in batch.sequences if self._asks_for_prompt(s)}
        odd = tuple(s.request_id for s in batch.sequences if s.samples and s.request_id in self.not_finite)
        sampled = [token for s in batch.sequences if s.samples for token in self._score(s)]
        stuck = {token.request_id: self.stuck[token.request_id] for token in sampled if token.request_id in self.stuck}
        tried = [*encoded, *(image.digest for image in batch.encode)]
        unreadable = {digest: self.unreadable[digest] for digest in tried if digest in self.unreadable}
        encoded = tuple(digest for digest in encoded if digest not in unreadable)
        return ModelOutput(sampled, prompts, odd, stuck, unreadable, encoded, self._propose(batch))

    def start_profile(self, directory: str) -> None:
        """See `Executor`."""
        self._called(f"start_profile {directory}")

    def stop_profile(self) -> str:
        """See `Executor`."""
        self._called("stop_profile")
        return "/traces/rank0"

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor`. Takes two seconds; forgets every block and image that is not kept."""
        self._called("sleep")
        if not (self.keeps_images and level == LIGHTEST):
            self.encoder.images.clear()
        self._clock.now_s += 2
        if KV_CACHE in tags:
            self._cache = {block: self._cache[block] for block in kept_blocks}
        return SleepReport(freed_bytes=800, residual_bytes=100, phases={"save": 0.5, "drop": 1.5})

    def forget_images(self) -> None:
        """See `SeeingExecutor`."""
        self._called("forget_images")
        self.encoder.images.clear()

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor`. Misses what `missing_bytes` says."""
        del tags
        self._called("prepare_wake_up")
        return self.missing_bytes

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`. Takes three seconds."""
        self._called("wake_up")
        self._clock.now_s += 3
        return WakeReport(dict.fromkeys(tags, 1.0))

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor`: its digest is the name of its directory. Takes as many calls as it has pieces."""
        self._called(f"add_lora {path}")
        self.lora_pieces.append(seconds)
        if seconds < math.inf and len(self.lora_pieces) % self.num_lora_pieces:
            return None
        self.loras[Path(path).name] = AdapterInfo(digest or Path(path).name, 8, 1024)
        return self.loras[Path(path).name]

    def remove_lora(self, digest: str) -> None:
        """See `Executor`."""
        self._called(f"remove_lora {digest}")
        self.loras.pop(digest, None)

    def list_loras(self) -> AdapterList:
        """See `Executor`."""
        return AdapterList([*self.loras.values()], self.lost_loras)

    def save_sharded_state(self, directory: str) -> None:
        """See `Executor`."""
        del directory
        self._called("save_sharded_state")

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """See `Executor`."""
        return self.ranks

    def check_ranks(self) -> None:
        """See `Executor`; not recorded, for it is called whenever nothing runs."""
        if "check_ranks" in self.fail_once:
            raise self.fail_once.pop("check_ranks")

    def verify(self) -> None:
        """See `Executor`."""
        self._sequences.clear()
        self._called("verify")

    def check_health(self) -> None:
        """See `Executor`."""
        self._called("check_health")

    def shutdown(self) -> None:
        """See `Executor`."""
        self._called("shutdown")

    def abandon(self) -> None:
        """See `Executor`."""
        self._called("abandon")

    def _called(self, method: str) -> None:
        self.calls.append(method)
        if method in self.fail_once:
            raise self.fail_once.pop(method)

    def _write(self, scheduled: ScheduledSequence) -> None:
        sequence = self._sequences[scheduled.request_id]
        tokens = [*sequence.tokens[: scheduled.num_known], *scheduled.draft_token_ids]
        for image in sequence.new.images:
            if scheduled.start < image.end and image.start < scheduled.end:
                assert image.digest in self.encoder.images, "a sequence computes tokens of an image that no rank holds"
        tokens = see(tokens, sequence.new.images)
        num_given = sequence.new.num_given_tokens
        assert scheduled.start >= num_given, "no pass computes what an adapter brings"
        start = 0 if scheduled.start == num_given else scheduled.start
        for table, block_ids in zip(sequence.tables, scheduled.new_block_ids, strict=True):
            table.extend(block_ids)
            for position in range(start, scheduled.end):
                block, slot = divmod(position, self.report.block_size)
                self._cache.setdefault(table[block], {})[slot] = tokens[position]

    def _score(self, scheduled: ScheduledSequence) -> Iterator[SampledToken]:
        """Yield a sequence's next token, and one behind each draft that was right."""
        sequence = self._sequences[scheduled.request_id]
        drafts = [*scheduled.draft_token_ids]
        token_id = self._sample(sequence)
        while drafts and token_id == drafts.pop(0):
            yield SampledToken(scheduled.request_id, token_id)
            token_id = self._sample(sequence)
        yield SampledToken(scheduled.request_id, token_id, forced=tuple(self._force(sequence)))

    def _sample(self, sequence: FakeSequence) -> int:
        token_id = next_token(*(self._read(sequence, group) for group in range(len(self._windows))))
        sequence.tokens.append(token_id)
        return token_id

    def _force(self, sequence: FakeSequence) -> Iterator[int]:
        new, tokens = sequence.new, sequence.tokens
        longest = min(len(new.prompt_token_ids) + new.sampling.max_tokens, self.report.max_model_len)
        count = tokens[-1] % (self.most_forced + 1) if new.sampling.grammar is not None else 0
        for _ in range(min(count, longest - len(tokens))):
            tokens.append(next_token(*visible_tokens(tokens, self._windows)))
            yield tokens[-1]

    def _propose(self, batch: Batch) -> Proposals | None:
        for scheduled in batch.sequences:
            table, most = self._sequences[scheduled.request_id].tables[0], scheduled.end + scheduled.num_wanted
            assert not scheduled.num_wanted or len(table) * self.report.block_size >= most, "drafts have no blocks"
        known = {key: sequence.tokens for key, sequence in self._sequences.items()}
        return self.draft_model.propose(batch, known, self._windows)

    def _read(self, sequence: FakeSequence, group: int) -> list[int]:
        """Return the cached tokens that the last one sees."""
        size, window = self.report.block_size, self._windows[group]
        first = 0 if window is None else max(0, len(sequence.tokens) - window)
        table = sequence.tables[group]
        return [self._cache[table[i // size]][i % size] for i in range(first, len(sequence.tokens))]

    def _asks_for_prompt(self, scheduled: ScheduledSequence) -> bool:
        new = self._sequences[scheduled.request_id].new
        return new.sampling.prompt_logprobs is not None and scheduled.start < len(new.prompt_token_ids) - 1

    def _prompt_logprobs(self, scheduled: ScheduledSequence) -> list[TokenLogprobs]:
        """Return for each prompt token after a computed one a 'log-probability' that tells which token it is."""
        prompt = self._sequences[scheduled.request_id].new.prompt_token_ids
        return [TokenLogprobs(-float(token), [], []) for token in prompt[scheduled.start + 1 : scheduled.end + 1]]
