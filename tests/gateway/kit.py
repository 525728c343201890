"""Calls through the gateway as tests make them."""

import grpc
import pytest
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb


def ask(house, model="tiny", **fields):
    """Return a Generate call that is under way."""
    timeout = fields.pop("timeout", 90)
    metadata = fields.pop("metadata", None)
    return house.stub.Generate(pb.GenerateRequest(model=model, text="a", **fields), timeout=timeout, metadata=metadata)


async def tokens_of(call):
    tokens = []
    while (response := await call.read()) is not aio.EOF:
        tokens.extend(response.token_ids)
    return tokens


async def refusal_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        await tokens_of(call)
    return caught.value
