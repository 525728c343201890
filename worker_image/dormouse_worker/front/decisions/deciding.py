"""One Decide call, from its checked message to its answers. Knows no gRPC context; raises CallError."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.calls.adapter_choice import choose_adapter, until_adapter_was_tried
from dormouse_worker.front.decisions.labels import decided
from dormouse_worker.front.decisions.prompts import Preparation, Prompt, Prompts
from dormouse_worker.front.decisions.questions import check_decide
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.in_flight import Order
from dormouse_worker.front.requests.reads import Read, Reads
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.worker import Worker

_QUESTIONS = "questions"


async def decide(worker: Worker, model: Model, request: pb.DecideRequest, caller: Caller) -> pb.DecideResponse:
    """Check everything, tokenize, have the engine read all questions at once. Raises CallError."""
    arrival_s = worker.clock()
    check_decide(request)
    if not worker.adapters.on_its_way(request.model, model.names):
        choose_adapter(worker, model, request.model)
    worker.check_admission(caller)
    with worker.requests.preparing(len(request.questions), _QUESTIONS, holds=caller.is_in_pod):
        await until_adapter_was_tried(worker, request.model, model)
        report = worker.board.engine.report
        assert report is not None, "a worker that admits has profiled"
        in_front = choose_adapter(worker, model, request.model).num_virtual_tokens
        preparation = Preparation(model, request, caller.name, report.max_model_len - in_front)
        prompts = await preparation.prompts(lambda count: worker.requests.check_possible(count, _QUESTIONS))
    branches = list(prompts.branches)
    worker.check_admission(caller, again=True)  # it may have changed while we tokenized
    worker.requests.check_room(len(branches), _QUESTIONS)
    reads = Reads(len(branches), arrival_s)
    if branches:
        salt = _salt(caller.cache_salt, request.prompt_cache_key)
        chosen = choose_adapter(worker, model, request.model)  # once more: a name may mean another adapter by now
        order = Order(prompts.state, priority=request.priority, cache_salt=salt, adapter=chosen.digest)
        await _read(worker, order, branches, reads)
    return _response(request, prompts, reads.each)


async def _read(
    worker: Worker, order: Order, branches: Sequence[tuple[list[int], tuple[int, ...]]], reads: Reads
) -> None:
    """Have the engine compute; whoever leaves takes his sequences along. Raises CallError."""
    num_tokens = sum(len(order.prompt_token_ids) + len(branch) for branch, _ in branches)
    worker.metrics.on_prompt(num_tokens)
    keys = worker.requests.open_decision(order, branches, reads.each)
    try:
        await reads.wait()
    finally:
        worker.requests.abandon(keys)


def _salt(of_caller: str, key: str) -> str:
    """Return whose cached beginnings are shared: a key makes the caller's parts smaller, never larger."""
    return f"{of_caller}\0{key}" if key else of_caller


def _response(request: pb.DecideRequest, prompts: Prompts, reads: Sequence[Read]) -> pb.DecideResponse:
    response = pb.DecideResponse(request_id=request.request_id or uuid.uuid4().hex)
    left = iter(reads)
    for prompt in prompts.prompts:
        own = [next(left) for _ in prompt.nodes]
        response.answers.append(_answer(prompt, own, request.min_label_mass))
        if own:
            response.usage.prompt_tokens += len(prompts.state) + len(prompt.token_ids)
            response.usage.cached_tokens += own[0].cached_tokens
    response.timings.queue_seconds = max((read.times.queue_s for read in reads), default=0.0)
    response.timings.prefill_seconds = max((read.times.prefill_s for read in reads), default=0.0)
    return response


def _answer(prompt: Prompt, reads: Sequence[Read], min_label_mass: float) -> pb.DecideAnswer:
    if prompt.refusal:
        return pb.DecideAnswer(refusal=prompt.refusal)
    asked = zip(prompt.nodes, reads, strict=True)
    told = {node.path: dict(zip(node.token_ids, read.logprobs, strict=True)) for node, read in asked}
    found = decided(prompt.labels, told)
    is_label = reads[0].token_id in prompt.nodes[0].token_ids
    mass = found.label_mass if found else 0.0
    if found is None or mass < min_label_mass:
        why = f"the model says one of its labels with a probability of {mass:.3g}; wanted: {min_label_mass:.3g}"
        return pb.DecideAnswer(label_mass=mass, argmax_is_label=is_label, refusal=why)
    return pb.DecideAnswer(probabilities=found.probabilities, label_mass=mass, argmax_is_label=is_label)
