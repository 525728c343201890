"""One Generate call, from its message to the end of its answers. Knows no gRPC context; raises CallError."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import Sequence

import grpc

from dormouse_api.images import forget_images
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.front.calls.adapter_choice import choose_adapter, until_adapter_was_tried
from dormouse_worker.front.engine.adapter_board import RETRY_PENDING_S, ChosenModel
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.sight import check_rows
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests import validation
from dormouse_worker.front.requests.answer_parts import read_parsing
from dormouse_worker.front.requests.binding import bind
from dormouse_worker.front.requests.caller import Caller, TimeLimit
from dormouse_worker.front.requests.choices import Choices
from dormouse_worker.front.requests.in_flight import Order
from dormouse_worker.front.requests.reply import Facts, Reply
from dormouse_worker.front.requests.runtimes import check_chosen, check_runtime, check_unbound
from dormouse_worker.front.requests.sampling import Prepared, choices, resumed_choice, to_sampling
from dormouse_worker.front.requests.streams import OutputStream, Times
from dormouse_worker.front.requests.two_sides import Opening, open_sequence
from dormouse_worker.front.requests.wake_event import WakeEvent
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.text.assembly import Resumed, TextAssembly, TextRules
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)
SEED_BITS = 64


class Generation:
    """Owns what a running call holds: its streams, the ids under which the engine runs them, the worker's deadline."""

    def __init__(
        self, worker: Worker, facts: Facts, streams: Sequence[OutputStream], bell: WakeEvent, images: HeldImages
    ) -> None:
        self._worker = worker
        self._images = images  # released when it ends
        self._streams = streams
        self._choices = Choices(streams)
        self._bell = bell  # rung by each of them
        self._reply = Reply(facts, streams)
        self.facts = facts
        self._keys: tuple[str, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Generation({self._reply!r}, keys={self._keys})"

    @property
    def streams(self) -> Sequence[OutputStream]:
        """Return its choices, in order."""
        return self._streams

    def open(self, order: Order, samplings: Sequence[Sampling], time_limit: TimeLimit | None) -> None:
        """Hand the choices to the engine; from now on `close` is due."""
        self._keys = self._worker.requests.open(order, list(zip(self._streams, samplings, strict=True)))
        self._worker.metrics.on_prompt(len(self.facts.prompt_token_ids))
        if time_limit is not None:
            elapsed_s = self._worker.clock() - self._streams[0].times.arrival_s
            error = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, time_limit.why)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(time_limit.seconds - elapsed_s, self._worker.requests.end, self._keys, error)

    async def next(self) -> pb.GenerateResponse | None:
        """Return the next message, None after the last. Raises CallError if the call ends otherwise."""
        if self._reply.is_complete:
            return None
        while (taken := self._choices.pop()) is None:
            await self._bell.heard()
        return self._reply.message(*taken)

    def abandon(self) -> None:
        """The caller left, or got everything: free what still runs."""
        self._worker.requests.abandon(self._keys)

    def close(self) -> None:
        """End it, however it went, and write its line into the log."""
        if self._timer is not None:
            self._timer.cancel()
        self.abandon()
        self._images.release()
        logger.info("request ended", extra={"fields": self._reply.log_fields()})


async def begin(worker: Worker, model: Model, request: pb.GenerateRequest, caller: Caller) -> Generation:
    """Check everything, tokenize, hand the choices to the engine. Raises CallError."""
    held = HeldImages()
    try:
        return await _begin(worker, model, request, caller, held)
    except BaseException:
        held.release()
        raise


async def _begin(
    worker: Worker, model: Model, request: pb.GenerateRequest, caller: Caller, held: HeldImages
) -> Generation:
    arrival_s = worker.clock()
    validation.check_request(request, model.card.vocab_size, from_gateway=caller.is_gateway)
    check_runtime(request, worker.served.edition.engine.runtime)
    if not worker.adapters.on_its_way(request.model, model.names):
        _choose_adapter(worker, model, request)
    num_choices = request.sampling_params.n or 1
    worker.check_admission(caller)
    model.check_stops(request.sampling_params.stop)
    with worker.requests.preparing(num_choices, holds=caller.is_in_pod):
        await until_adapter_was_tried(worker, request.model, model)
        max_model_len = _max_model_len(worker, model)
        await model.look(request.chat, held, caller=caller.name, salt=caller.cache_salt)
        forget_images(request.chat)  # the message lives as long as its answer
        prompt = await model.prompt_token_ids(request, caller.name, max_model_len, held)
        images = model.image_inputs(prompt, held)
        check_rows(images, worker.board.engine, "sound" if held.sounds else "image")
        validation.check_made_of(f"prompt.{request.WhichOneof('prompt')}", prompt, model.card.vocab_size)
        opening = open_sequence(
            prompt,
            request.sampling_params,
            worker.board.engine,
            max_model_len=max_model_len,
            in_front=_choose_adapter(worker, model, request).num_virtual_tokens,
        )
        prediction = await _prediction(worker, model, request, caller, opening.max_tokens)
        bad_words = await model.bad_words_token_ids(request.sampling_params.bad_words, caller.name)
        parsing = read_parsing(model, request, prompt)
        check_unbound(parsing, worker.served.edition.engine.runtime)
        grammar = await bind(model, request, parsing, caller.name)
        first = _first_sampling(model, request, opening, bad_words=bad_words, grammar=grammar)
        check_chosen(first, worker.served.edition.engine.runtime)
        ends = frozenset(grammar.end_token_ids) if grammar is not None else frozenset[int]()
        parsers = parsing.parsers(num_choices) if parsing else []
        markers = parsing.grammar.markers if parsing else frozenset[str]()
        assemblies = [_assembly(request, model, opening.said, ends, markers) for _ in range(num_choices)]
        resumed = await _resume(model, request, first, assemblies[0]) if request.HasField("resume") else None
    _check_admission(worker, caller, num_choices)  # it may have changed while we tokenized
    samplings, bell = choices(first, num_choices), WakeEvent()
    streams = [
        OutputStream(
            assembly,
            Times(arrival_s),
            clock=worker.clock,
            on_due=bell.ring,
            choice_index=sampling.choice_index,
            interval=request.stream_interval or 1,
        )
        for assembly, sampling in zip(assemblies, samplings, strict=True)
    ]
    if resumed is not None and parsers:
        parsers[0].feed(resumed.known_text)
    chosen = _choose_adapter(worker, model, request)  # once more: a name may mean another adapter by now
    validation.check_lengths(prompt, request.sampling_params, max_model_len, chosen.num_virtual_tokens)
    named = first.logprob_token_ids
    counts = model.count_parts(prompt, held, images)
    facts = Facts(request.request_id or uuid.uuid4().hex, first.seed, prompt, parsers, chosen, named, counts)
    generation = Generation(worker, facts, streams, bell, held)
    if resumed is not None:
        streams[0].begin_with(resumed)
    if streams[0].is_finished:
        worker.metrics.on_end(streams[0], streams[0].finish_reason or "stop")
    else:
        place = (request.priority, caller.cache_salt, chosen.digest)
        order = Order(
            opening.token_ids,
            list(request.resume.output_token_ids),
            *place,
            prediction,
            images,
            _kv_source(request.resume),
            opening.num_source_tokens,
            request.remote_decode,
        )
        generation.open(order, samplings, caller.time_limit)
    return generation


def _kv_source(resume: pb.Resume) -> KvSource | None:
    source = resume.kv_source
    return KvSource(source.address, tuple(source.tickets)) if source.address else None


async def _prediction(
    worker: Worker, model: Model, request: pb.GenerateRequest, caller: Caller, max_tokens: int
) -> list[int]:
    """Return the first tokens of what the caller predicts, none where nobody would try them. Raises CallError."""
    if not request.prediction or not worker.served.edition.engine.max_draft_tokens:
        return []
    token_ids = await model.prediction_token_ids(request.prediction, caller.name, max_tokens)
    validation.check_made_of("prediction", token_ids, model.card.vocab_size)
    return token_ids


def _check_admission(worker: Worker, caller: Caller, num_requests: int) -> None:
    worker.check_admission(caller, again=True)
    worker.requests.check_room(num_requests)


def _choose_adapter(worker: Worker, model: Model, request: pb.GenerateRequest) -> ChosenModel:
    """Return which adapter answers. Raises CallError, UNAVAILABLE where it is not the one that began the answer."""
    chosen = choose_adapter(worker, model, request.model)
    if request.HasField("resume") and request.resume.adapter_digest != chosen.digest:
        began = request.resume.adapter_digest or "the base model alone"
        raise CallError(
            grpc.StatusCode.UNAVAILABLE,
            f"{request.model} is the adapter with the digest {chosen.digest or 'none'} here; {began} began this answer",
            RETRY_PENDING_S,
        )
    return chosen


def _max_model_len(worker: Worker, model: Model) -> int:
    report = worker.board.engine.report
    return report.max_model_len if report is not None else model.card.max_model_len


def _first_sampling(
    model: Model,
    request: pb.GenerateRequest,
    opening: Opening,
    *,
    bad_words: tuple[tuple[int, ...], ...],
    grammar: Grammar | None,
) -> Sampling:
    """Return the parameters of the first choice, checked with everything that holds for it. Raises CallError."""
    forbidden = (*bad_words, *opening.bad_words_token_ids)
    prepared = Prepared(opening.max_tokens, secrets.randbits(SEED_BITS), forbidden, grammar)
    sampling = to_sampling(request.sampling_params, model.card, prepared)
    validation.check_effective(sampling)
    validation.check_choosable(sampling, model.card.vocab_size)
    if not request.HasField("resume"):
        return sampling
    validation.check_continuable(request, sampling)
    return resumed_choice(sampling, request.resume)


async def _resume(model: Model, request: pb.GenerateRequest, sampling: Sampling, assembly: TextAssembly) -> Resumed:
    """Feed the resumed tokens to the text. Raises CallError if the caller cannot have so many bytes of it."""
    resume, ends = request.resume, frozenset(sampling.stop_token_ids)
    try:
        resumed = await model.work.run(
            lambda: assembly.resume(resume.output_token_ids, ends, emitted_utf8_bytes=resume.emitted_utf8_bytes)
        )
    except ValueError as error:
        refuse("resume.emitted_utf8_bytes", str(resume.emitted_utf8_bytes), str(error))
    if resumed.finish_reason is None and len(resume.output_token_ids) == sampling.max_tokens:
        # the first worker died between the last token and the message that ends a full piece
        text = resumed.text + assembly.flush()
        reason = "stop" if assembly.matched_stop else "length"
        return Resumed(resumed.known_text, text, reason, assembly.matched_stop)
    return resumed


def _assembly(
    request: pb.GenerateRequest, model: Model, said: Sequence[int], ends: frozenset[int], markers: frozenset[str]
) -> TextAssembly:
    """Return what makes text of an output that follows these tokens."""
    params = request.sampling_params
    skip = params.skip_special_tokens if params.HasField("skip_special_tokens") else True
    kept = model.codec.special_token_ids(markers).values()
    rules = TextRules(
        decoder=model.codec.stream(said, skip_special_tokens=skip, kept=kept),
        stops=tuple(params.stop),
        include_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        grammar_end_token_ids=ends,
    )
    return TextAssembly(rules)
