"""Mutants of the stand-in worker: each breaks a sentence of the specification by a line of its text."""

from __future__ import annotations

from typing import NamedTuple

_TICKET = "if worker.role_of(context) is not Role.OPERATOR:\n                raise"
_SHOWN = "context.invocation_metadata()"
_REFUSED = "            except CallError as error:\n                context"
_SLEEP, _WAKE = "allocated, worker.level = 0, request.level", "allocated, worker.level = worker.agreed, 0"
_CLOSE = "        worker.close_doors()\n        worker.end_running(request.mode)\n        return"


class Mutant(NamedTuple):
    """A line, what stands in its place, and the rule that the kit must find broken, first of all."""

    rule: str
    line: str  # a part of it that stands once in the text
    instead: str
    also: frozenset[str] = frozenset()  # other rules that the same line breaks
    only: tuple[str, ...] = ()  # what is asked, where the mutant would keep all other rules from being tried
    lacks: str = ""  # a capability that it does not claim


def _also(*rules: str) -> frozenset[str]:
    return frozenset(rules)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "agreement.report",
        "return self.worker.report()",
        "return control.MemoryReport(block_size=BLOCK_SIZE, num_gpu_blocks=BLOCKS - 1, max_model_len=MODEL_LEN)",
    ),
    Mutant("agreement.adds-up", "total_bytes=BLOCKS * BLOCK_BYTES * 2", "total_bytes=BLOCKS"),
    Mutant("agreement.unserved", "if self.state != READY:", "if self.state not in {READY, PROFILED}:"),
    Mutant("agreement.too-many", "if count > BLOCKS:", "if count > 2 * BLOCKS:"),
    Mutant("agreement.none", 'raise CallError(INVALID, "num_gpu', 'raise CallError(UNMET, "num_gpu'),
    Mutant("agreement.too-few", "if count * BLOCK_SIZE < MODEL_LEN:", "if False:"),
    Mutant("agreement.exact", "worker.allocated = count\n", "worker.allocated = count if worker.agreed else BLOCKS\n"),
    Mutant("agreement.again", "if worker.running and count != worker.allocated:", "if worker.running:"),
    Mutant(
        "agreement.another",
        "worker.allocated = count\n",
        "worker.allocated = worker.allocated or count\n",
        _also("sleep.wakes"),
    ),
    Mutant("agreement.busy", "if worker.running and count != worker.allocated:", "if False:"),
    Mutant("life.wrong-state", "require(ASLEEP, READY, STANDBY)", "require(ASLEEP, READY, STANDBY, DRAINING)"),
    Mutant("life.wrong-state", 'the worker is {name_of(self.state)}")\n\n    def take', 'not now")\n\n    def take'),
    Mutant("life.identity", 'instance="instance-1"', 'instance=f"instance-{self.state}"'),
    Mutant(
        "life.watch", "yield from follow(worker, lambda: worker.state, worker.status, context)", "yield worker.status()"
    ),
    Mutant("life.load", "yield from follow(worker, lambda: worker.state, load, context)", "yield load()"),
    Mutant("life.health", "seconds_since_step=0.001", 'seconds_since_step=float("nan")'),
    Mutant("doors.operator", _TICKET, _TICKET.replace(":", f' and "ticket" in str({_SHOWN}):')),
    Mutant("doors.role", _TICKET, _TICKET.replace("is not Role.OPERATOR", "is Role.CLIENT")),
    Mutant(
        "doors.audience",
        "return self.proofs.role_of(",
        f'return Role.OPERATOR if "operator;" in str({_SHOWN}) else self.proofs.role_of(',
    ),
    Mutant("doors.health", "serves = self.worker.state == READY", "serves = True"),
    Mutant("fencing.highest", "epoch=self.epoch,", "epoch=min(self.epoch, 1),"),
    Mutant("fencing.older", "@command()\n    def Drain", "@command(needs_epoch=False)\n    def Drain"),
    Mutant("fencing.every", "@command()\n    def PrepareSleep", "@command(needs_epoch=False)\n    def PrepareSleep"),
    Mutant("fencing.every", "@command()\n    def Determine", "@command(needs_epoch=False)\n    def Determine"),
    Mutant(
        "fencing.refused",
        _REFUSED,
        _REFUSED.replace("context", "self.worker.epoch -= getattr(request, 'level', 0) > 3\n                context"),
    ),
    Mutant(
        "fencing.range", "if epoch > MAX_EPOCH:\n", "if epoch > MAX_EPOCH:\n            return\n        if False:\n"
    ),
    Mutant("fencing.asleep", _SLEEP, "epoch, worker.allocated, worker.level = 0, 0, request.level"),
    Mutant(
        "streams.end",
        "            yield message\n",
        "            yield message\n            if not open_choices:\n"
        "                yield pb.GenerateResponse(completion_tokens=position + 1)\n",
    ),
    Mutant(
        "streams.length",
        "return pb.FINISH_REASON_LENGTH",
        "return pb.FINISH_REASON_STOP",
    ),
    Mutant("streams.count", "completion_tokens=position + 1,", "completion_tokens=position + 1 + (position == 9),"),
    Mutant("streams.usage", "prompt_tokens=len(prompt),", "prompt_tokens=len(prompt) - 1,"),
    Mutant("streams.first", "is_first = False", "is_first = True"),
    Mutant("streams.greedy", "params.temperature else 0", "params.temperature else len(worker.running)"),
    Mutant(
        "streams.seed",
        "params.seed if params.temperature",
        "number if params.temperature",
        _also("sleep.same", "resume.sampled", "relay.same", "relay.apart"),
    ),
    Mutant("streams.stop", "if message.token_ids[0] in params.stop_token_ids:", "if False:"),
    Mutant("streams.choices", "list(request.token_ids.ids), params.n or 1", "list(request.token_ids.ids), 1"),
    Mutant("streams.left", "when_left(lambda: worker.free(number))", "when_left(lambda: None)", only=("streams.left",)),
    Mutant(
        "errors.field", 'f"temperature is {request.sampling_params.temperature:g}; at least 0"', '"a field is wrong"'
    ),
    Mutant("errors.prompt", 'if request.WhichOneof("prompt") is None:', "if False:"),
    Mutant("errors.vocabulary", "token >= VOCAB", "token > VOCAB"),
    Mutant("errors.long", 'reason="context_length_exceeded"', 'reason=""'),
    Mutant("errors.model", 'if request.model not in {"", "stand-in"}:', "if False:"),
    Mutant("errors.task", "this model generates: call Generate", "wrong task"),
    Mutant("errors.unclaimed", "if Capability.RESUME not in worker.claims:", "if False:", lacks="resume"),
    Mutant("errors.unclaimed", "if levels[request.level] not in worker.claims:", "if False:", lacks="sleep_level_2"),
    Mutant(
        "draining.refuses", "if self.state != READY:", "if self.state not in {READY, DRAINING}:", _also("sleep.closed")
    ),
    Mutant(
        "draining.finishes",
        "request.timeout_seconds or 30.0)\n",
        "request.timeout_seconds or 30.0)\n        self.worker.aborted |= self.worker.running\n",
    ),
    Mutant("draining.remaining", "remaining_requests=len(self.worker.running)", "remaining_requests=0"),
    Mutant("draining.waits", "request.timeout_seconds or 30.0)", "0.01)"),
    Mutant("draining.reopens", "elif worker.state == DRAINING:", "elif False:", only=("draining.reopens",)),
    Mutant(
        "sleep.counter",
        "PrepareSleepResponse(request_counter=worker.accepted)",
        "PrepareSleepResponse(request_counter=worker.accepted + 1)",
    ),
    Mutant("sleep.late", 'if request.HasField("request_counter") and', "if False and"),
    Mutant("sleep.closed", _CLOSE, _CLOSE.replace("worker.close_doors()", "pass")),
    Mutant("sleep.drain", "if mode == control.DRAIN_MODE_ABORT:", "if mode != control.DRAIN_MODE_DRAIN:"),
    Mutant("sleep.abort", "if mode == control.DRAIN_MODE_ABORT:", "if False:"),
    Mutant("sleep.level-1", _SLEEP, "allocated, worker.level = 0, 2"),
    Mutant("sleep.level-2", _SLEEP, "allocated, worker.level = worker.allocated * (request.level - 1), request.level"),
    Mutant("sleep.unserved", "if self.state != READY:", "if self.state not in {READY, ASLEEP}:"),
    Mutant(
        "sleep.text",
        "token_ids=request.text.encode()",
        'token_ids=request.text.encode() if self.worker.allocated else b""',
    ),
    Mutant("sleep.again", "worker.require(DRAINING, ASLEEP, STANDBY)", "worker.require(DRAINING)"),
    Mutant("sleep.level", 'raise CallError(INVALID, f"level', 'raise CallError(UNMET, f"level'),
    Mutant("sleep.tag", "if not TAGS.issuperset(request.tags):", "if False:"),
    Mutant("sleep.reserve", "return control.PrepareWakeUpResponse()", "self.worker.become(READY)"),
    Mutant("sleep.wakes", _WAKE, "allocated, worker.level = worker.agreed - 1, 0"),
    Mutant("sleep.same", _WAKE, "weights, worker.allocated, worker.level = worker.weights + 1, worker.agreed, 0"),
    Mutant(
        "sleep.awake", "worker.require(ASLEEP, READY, DRAINING, STANDBY)", "worker.require(ASLEEP, DRAINING, STANDBY)"
    ),
    Mutant("sleep.standby", "worker.allocated, worker.level = 0, 3", "worker.level = 3"),
    Mutant(
        "sleep.standby",
        "worker.require(PROFILED, READY, DRAINING)",
        "worker.require(PROFILED, READY, DRAINING, STANDBY)",
    ),
    Mutant("sleep.standby-tags", "if request.level == 3 and request.tags:", "if False:"),
    Mutant("sleep.restart", "            worker.load()\n", "            worker.become(READY)\n"),
    Mutant("cache.repeats", "len(beginning) if beginning in worker.cached else 0", "0"),
    Mutant("cache.forgets", "self.worker.cached.clear()", "pass"),
    Mutant(
        "resume.rest",
        "range(len(known), params.max_tokens)",
        "range(max(0, len(known) - 1), params.max_tokens)",
        _also("resume.sampled", "resume.count", "resume.text"),
    ),
    Mutant("resume.sampled", "seed + choice, position)", "seed + choice, position - (len(known) if seed else 0))"),
    Mutant("resume.count", "completion_tokens=num_choices * len(known)", "completion_tokens=0"),
    Mutant("resume.text", "[request.resume.emitted_utf8_bytes :]", "[0:]"),
    Mutant("resume.role", "if role is not Role.GATEWAY:\n            raise", "if False:\n            raise"),
    Mutant("resume.adapter", "if request.resume.adapter_digest:", "if False:"),
    Mutant("relay.hello", 'send_initial_metadata(((METADATA_RELAY, "1"),))', "send_initial_metadata(())"),
    Mutant("relay.same", "end = wire.CarriedStatus()", "end = wire.CarriedStatus(code=2)"),
    Mutant("relay.apart", "CarriedPart(call=call.call, message=", "CarriedPart(call=1, message="),
    Mutant("relay.status", "code=error.code.value[0]", "code=13"),
    Mutant("relay.cancel", "if cancelled.is_set():", "if False:"),
)
