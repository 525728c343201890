"""One Embed call, from its checked message to its vectors. Knows no gRPC context; raises CallError."""

from __future__ import annotations

import uuid
from array import array

from dormouse_api.limits import FLOAT_BYTES, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.task_messages import PooledOutput, PoolingParams
from dormouse_worker.front.calls.pooling_calls import Texts, admitted, compute
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.pooling_inputs import check_common, check_inputs, texts_of
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.worker import Worker

SPARE_BYTES = 64 << 10  # of an answer, for what is no vector


async def embed(worker: Worker, model: Model, request: pb.EmbedRequest, caller: Caller) -> pb.EmbedResponse:
    """Check everything, tokenize, have the engine compute. Raises CallError."""
    arrival_s = worker.clock()
    check_common(request)
    check_inputs(request, model.card.vocab_size)
    check_dimensions(request, admitted(worker, caller))

    async def prepare(max_model_len: int) -> Texts:
        return Texts(await texts_of(model, request, caller.name, max_model_len), [])

    params = PoolingParams(request.dimensions, request.normalize if request.HasField("normalize") else None)
    output, texts = await compute(worker, caller, prepare, params, priority=request.priority, arrival_s=arrival_s)
    return _response(request, output, texts.num_tokens)


def check_dimensions(request: pb.EmbedRequest, model: ModelInfo) -> None:
    """Vectors can be cut so, and all of them fit the answer. Raises CallError INVALID_ARGUMENT."""
    wanted, size = request.dimensions, model.embedding_size
    if wanted and model.dimensions and wanted not in model.dimensions:
        refuse("dimensions", str(wanted), f"{', '.join(map(str, model.dimensions))}, which the model was trained for")
    if wanted > size:
        refuse("dimensions", str(wanted), f"at most {size}, as the model's vectors have")
    most = (MAX_MESSAGE_BYTES - SPARE_BYTES) // ((wanted or size) * FLOAT_BYTES)
    if len(request.inputs) > most:
        limit = f"at most {most} with vectors of {wanted or size} numbers: an answer has {MAX_MESSAGE_BYTES} bytes"
        refuse("inputs", f"{len(request.inputs)} texts", limit)


def _response(request: pb.EmbedRequest, output: PooledOutput, num_tokens: int) -> pb.EmbedResponse:
    response = pb.EmbedResponse(request_id=request.request_id or uuid.uuid4().hex)
    for vector in output.vectors:
        response.embeddings.add().values.extend(array("f", vector))
    response.usage.prompt_tokens = num_tokens
    response.timings.queue_seconds, response.timings.prefill_seconds = output.queue_seconds, output.prefill_seconds
    return response
