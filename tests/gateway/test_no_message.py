"""A call whose client closes its side without saying anything is answered, and in words."""

import grpc
import pytest

from dormouse_gateway.clients.requests import METHODS


async def nothing():
    """Yield no message."""
    return
    yield


@pytest.mark.parametrize("method", [method.name for method in METHODS])
async def test_a_call_without_a_message_is_invalid_argument(house, method):
    call = house.channel.stream_stream(f"/dormouse.v1.Inference/{method}")(nothing(), timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == f"the call ended without a message; {method} takes one dormouse.v1.{method}Request"
    assert house.gateway.metrics.value("dormouse_rejected_total", reason="invalid_argument") == 1


async def test_a_second_message_changes_nothing(house, workers):
    from dormouse_api.v1 import inference_pb2 as pb

    await house.add("tiny", workers[:1])
    two = [pb.TokenizeRequest(model="tiny", text=text).SerializeToString() for text in "ab"]
    call = house.channel.stream_stream("/dormouse.v1.Inference/Tokenize")(iter(two), timeout=60)
    assert pb.TokenizeResponse.FromString(await call.read()).token_ids == [ord("a")]
