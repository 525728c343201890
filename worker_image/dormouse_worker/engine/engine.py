"""The step: schedule, run, commit. Owns the scheduler and the batches under way; knows neither sockets nor states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from copy import copy

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.ipc import Added, AddRequest, DraftCounts, StepOutputs, TokenOutput
from dormouse_worker.common.sides import source_room
from dormouse_worker.engine.batch import Batch, ModelOutput, Proposals
from dormouse_worker.engine.encoder_sources import why_no_source
from dormouse_worker.engine.executor import Executor, ModelExecutor
from dormouse_worker.engine.forward_pass import Counters
from dormouse_worker.engine.grammars import Preparation
from dormouse_worker.engine.images.intake import why_no_images
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.scheduler import Scheduler
from dormouse_worker.engine.token_outputs import prompt_outputs, token_output
from dormouse_worker.engine.under_way import UnderWay
from dormouse_worker.engine.verification import complaint_of
from dormouse_worker.engine.virtual_tokens import behind_virtual_tokens, why_too_long

logger = logging.getLogger(__name__)

NOT_FINITE = (
    "the model's logits are not finite: its weights, its cache or the device are damaged, or its numbers grow too "
    "large for its dtype"
)

GRAMMAR_WAIT_S = 0.002  # with nothing else to do; messages come in between


class Engine:
    """Turns requests into tokens, one forward pass per step.

    Executors with stages, and those that run ahead, have several batches under way; a step waits for the oldest.
    """

    def __init__(
        self,
        executor: ModelExecutor,
        scheduler: Scheduler,
        clock: Callable[[], float],
        keeper: NoKeeper | None = None,
        *,
        image_dir: str = "",
    ) -> None:
        """`image_dir` is where the front puts images; "" = it has none."""
        self._image_dir = image_dir
        self._executor = executor
        self.keeper = keeper or NoKeeper()
        self._scheduler = scheduler
        self.images = scheduler.images
        self._clock = clock
        self._told = Counters()
        self._under_way = UnderWay(executor, scheduler.limits.max_batches_under_way)
        self.num_failures_in_a_row = 0  # forward passes that raised since the last good one
        self.num_odd_in_a_row = 0  # of which no row was finite

    def __repr__(self) -> str:
        return f"Engine({self._scheduler!r})"

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return self._scheduler.has_work

    @property
    def num_requests(self) -> int:
        """Return how many requests are unfinished."""
        return self._scheduler.num_running + self._scheduler.num_waiting

    def add(self, message: Added) -> str | None:
        """Queue a request; return why it cannot be taken, or None. The front has checked it; this is the net below.

        Raises GrammarRefused where nothing here can be bound by its grammar.
        """
        if not isinstance(message, AddRequest):
            return "the model makes text, and no vectors"
        if not message.prompt_token_ids:
            return "prompt is empty; at least 1 token is needed"
        if len(message.output_token_ids) >= message.sampling.max_tokens:
            return f"resume has {len(message.output_token_ids)} tokens; max_tokens is {message.sampling.max_tokens}"
        size, most = self._scheduler.tables.layout.block_size, self._scheduler.limits.max_num_batched_tokens
        why = self._scheduler.adapters.why_not(message.adapter) or self._why_no_images(message)
        if why := why or why_no_source(message, size, most):
            return why
        num_virtual_tokens = self._scheduler.adapters.num_virtual_tokens(message.adapter)
        if why := why_too_long(message, num_virtual_tokens, self._scheduler.limits.max_model_len):
            return why
        adapter, lora_start = self._scheduler.adapters.activate(message.adapter, message.prompt_token_ids)
        request = Request(
            message.request_id,
            behind_virtual_tokens(message.prompt_token_ids, num_virtual_tokens),
            message.sampling,
            arrival_s=self._clock(),
            output_token_ids=list(message.output_token_ids),
            priority=message.priority,
            cache_salt=message.cache_salt,
            preparation=self._prepare(message),
            adapter=adapter,
            lora_start=lora_start,
            num_virtual_tokens=num_virtual_tokens,
            num_given_tokens=num_virtual_tokens if self._scheduler.adapters.has_keys(adapter) else 0,
            prediction_token_ids=message.prediction_token_ids,
            images=message.images,
            num_source_tokens=message.num_source_tokens,
            source_end=source_room(message.num_source_tokens, size),
            remote_decode=message.remote_decode,
        )
        self._scheduler.add(request)
        self.keeper.begin(request, message.kv_source)
        return None

    def abort(self, request_ids: list[str]) -> list[TokenOutput]:
        """Free these requests, at once or with their last batch; return the last message of each that was known."""
        known = [request_id for request_id in request_ids if self._scheduler.remove(request_id)]
        self.keeper.cancel(known)
        return [TokenOutput(request_id, [], "abort") for request_id in known]

    def abort_all(self) -> list[TokenOutput]:
        """Free every request."""
        return self.abort(self._scheduler.request_ids)

    def step(self) -> StepOutputs | None:
        """Run one forward pass; None if there is nothing to do. A failing forward pass raises only GroupBroken."""
        self.keeper.turn()
        if not self._under_way and (departed := self.keeper.hand_on(self._scheduler.departing)):
            return self.outputs(self.abort(departed))
        self._hand_over()
        if self._under_way:
            return self._collect()
        self._scheduler.wait_for_held(GRAMMAR_WAIT_S)
        return self.outputs([]) if self._scheduler.tables.pool.listener.has_news else None

    def settle(self) -> Iterator[StepOutputs]:
        """Wait for the batches under way and hand over no others; yield what came out. Raises GroupBroken."""
        while self._under_way:
            yield self._collect()

    def is_leaving(self, request_id: str) -> bool:
        """Return whether an ended request is still in a batch under way: its id cannot be given again yet."""
        return self._scheduler.is_leaving(request_id)

    def _why_no_images(self, message: AddRequest) -> str | None:
        cache, num_prompt = self.images, len(message.prompt_token_ids)
        if cache.are_whole and message.images and message.sampling.prompt_logprobs is not None:
            return "prompt_logprobs are not told of images whose tokens see each other; leave one of them out"
        return why_no_images(message.images, num_prompt, max_rows=cache.num_rows, folder=self._image_dir)

    def _prepare(self, message: AddRequest) -> Preparation | None:
        grammar = message.sampling.grammar
        return None if grammar is None else self._executor.prepare_grammar(grammar)

    def _hand_over(self) -> None:
        while self._under_way.has_room and (batch := self._scheduler.schedule()) is not None:
            self.keeper.save_evicted()
            self._under_way.submit(batch)

    def _collect(self) -> StepOutputs:
        batch, wait_for_output = self._under_way.take_oldest()
        started_s = self._clock()
        try:
            output = wait_for_output()
        except GroupBroken:  # the requests go on elsewhere: nobody is told that they failed
            raise
        except Exception as error:  # noqa: BLE001  whatever a model raises may cost its own batch only
            return self._fail(batch, error)
        self.num_failures_in_a_row = 0
        self._observe(batch, self._clock() - started_s, output.proposals)
        odd, stuck, blind = self._end_odd(output), self._end_stuck(output), self._end_unreadable(output)
        self.images.finish(output.encoded)
        prompt_parts = list(prompt_outputs(batch, output, self._scheduler.request)) if output.prompt_logprobs else []
        progress = self._scheduler.commit(batch, output.sampled)
        self._scheduler.hear(batch, output.proposals)
        outputs = [*prompt_parts, *(token_output(item, self._clock) for item in progress)]
        return self.outputs(outputs, odd | blind, refused=stuck, num_odd=len(odd))

    def _observe(self, batch: Batch, seconds: float, proposals: Proposals | None) -> None:
        """Tell who asks how long a pass took; those that propose drafts where it was computed while waited for."""
        self.keeper.note_pass(batch.num_tokens, seconds)
        self.images.note_pass(batch, seconds)
        speculation, limits = self._scheduler.speculation, self._scheduler.limits
        if speculation is not None and limits.max_batches_under_way == 1:
            speculation.observe(batch, seconds - (0.0 if proposals is None else proposals.seconds))

    def give_up(self, why: str) -> StepOutputs:
        """End every request with an error."""
        return self.outputs([], {output.request_id: why for output in self.abort_all()})

    def _end_odd(self, output: ModelOutput) -> dict[str, str]:
        """End the requests whose logits are not finite; return them with the reason.

        Nobody begins with their blocks any more, nor with rows of images, in which there may be no numbers either.
        """
        if not output.not_finite:
            if output.sampled:
                self.num_odd_in_a_row = 0
            return {}
        ended = [request_id for request_id in output.not_finite if not self.is_leaving(request_id)]
        if any(token.request_id not in output.not_finite for token in output.sampled):
            self.num_odd_in_a_row = 0
        elif ended:
            self.num_odd_in_a_row += 1
        logger.error("%d requests end: %s", len(ended), NOT_FINITE)
        for request_id in ended:
            self.keeper.forget(self._scheduler.request(request_id))
        self.abort(ended)
        self.forget_prefixes()
        self.images.clear()
        return dict.fromkeys(ended, NOT_FINITE)

    def _end_stuck(self, output: ModelOutput) -> dict[str, str]:
        """End the requests whose grammars leave no token; return them with the reason."""
        ended = {key: why for key, why in output.stuck.items() if not self.is_leaving(key)}
        self.abort(list(ended))
        return ended

    def _end_unreadable(self, output: ModelOutput) -> dict[str, str]:
        """End the requests with an image that cannot be encoded; return them with the reason.

        Blocks may be named that were computed without it, so nobody begins with any block that is known now.
        """
        if not output.unreadable:
            return {}
        ended = self._scheduler.with_images(output.unreadable)
        self.abort([*ended])
        self.forget_prefixes()
        return ended

    def outputs(
        self,
        outputs: list[TokenOutput],
        failed: dict[str, str] | None = None,
        *,
        refused: dict[str, str] | None = None,
        num_odd: int = 0,
    ) -> StepOutputs:
        """Return a message with these outputs, the present load, and what was counted since the last message."""
        scheduler, now, told = self._scheduler, self._scheduler.counters, self._told
        self._told = copy(now)
        return StepOutputs(
            outputs=outputs,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_cache_usage=scheduler.tables.usage,
            failed=failed or {},
            refused=refused or {},
            prefix_queries=now.prefix_queries - told.prefix_queries,
            prefix_hits=now.prefix_hits - told.prefix_hits,
            preemptions=now.preemptions - told.preemptions,
            mm_cache_queries=now.image_queries - told.image_queries,
            mm_cache_hits=now.image_hits - told.image_hits,
            not_finite=num_odd,
            drafts=self._take_draft_counts(),
            kv_store=self.keeper.take_counts(),
            kv_events=scheduler.tables.pool.listener.take(),
        )

    def _take_draft_counts(self) -> DraftCounts | None:
        speculation = self._scheduler.speculation
        return None if speculation is None else speculation.take_counts()

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """Return the blocks whose contents a later request may ask for; all there are while nothing runs."""
        return self._scheduler.tables.pool.cached_blocks

    def forget_ranks(self) -> None:
        """The ranks lost what they knew of sequences: the next batch tells them everything."""
        self._scheduler.forget_ranks()

    def verify(self, executor: Executor) -> str:
        """Have the model repeat its golden tokens, with nothing under way; return what is wrong with it, "" = nothing.

        Passes count anew then: the requests brought it about. Raises GroupBroken.
        """
        self.forget_ranks()
        if not (complaint := complaint_of(executor)):
            self.num_odd_in_a_row = 0
        return complaint

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; running requests keep what they hold."""
        self._scheduler.tables.pool.forget_prefixes()
        if self._scheduler.speculation is not None:
            self._scheduler.speculation.forget()

    def check_integrity(self) -> None:
        """Recount the blocks; when nothing runs none may be used. Raises RuntimeError with the numbers."""
        self._scheduler.check_integrity()

    def _fail(self, batch: Batch, error: Exception) -> StepOutputs:
        logger.error("forward pass over %d sequences failed", len(batch.sequences), exc_info=error)
        self.num_failures_in_a_row += 1
        why = f"the forward pass failed: {type(error).__name__}: {error}"
        return self.outputs([], dict.fromkeys(self._scheduler.fail(batch, list(self._under_way.discard())), why))
