"""How errors leave a servicer."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_worker.front.api.answers import MAX_SENTENCE_BYTES, answered


class Aborted(Exception):
    """What gRPC raises in a handler that aborted."""


class Context:
    """Records the status with which the call ended."""

    status = None

    async def abort_with_status(self, status):
        self.status = status
        raise Aborted


class Service:
    """Raises what it is told to, or answers."""

    @answered
    async def call(self, request, context):  # noqa: ARG002  the shape of a gRPC method
        if isinstance(request, Exception):
            raise request
        return request


async def status_of(error):
    context = Context()
    with pytest.raises(Aborted):
        await Service().call(error, context)
    return context.status


async def test_an_answer_passes():
    assert await Service().call(7, Context()) == 7


async def test_our_errors_become_their_code_and_sentence():
    status = await status_of(CallError(grpc.StatusCode.NOT_FOUND, "no such model"))
    assert (status.code, status.details) == (grpc.StatusCode.NOT_FOUND, "no such model")


async def test_a_sentence_that_quotes_a_long_name_is_cut_to_what_trailers_hold():
    status = await status_of(CallError(grpc.StatusCode.NOT_FOUND, "é" * (1 << 20), 1.0))
    assert status.details == "é" * (MAX_SENTENCE_BYTES // 2) + "…"


async def test_an_unforeseen_error_is_internal_with_an_id_that_stands_in_the_log_and_without_its_words(caplog):
    status = await status_of(ValueError("a secret"))
    assert status.code is grpc.StatusCode.INTERNAL
    assert "secret" not in status.details
    error_id = status.details.partition("id=")[2].split()[0]
    assert [record.fields["id"] for record in caplog.records] == [error_id]
