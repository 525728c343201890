"""A model's template is not trusted: whatever it does, the port opens, and those who send no chats notice nothing."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.app import Seams
from dormouse_worker.front.testing import write_model

HI = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
HOSTILE = {"a constant": "{{ 'a'|center(10**10) }}", "a text": "{{ messages[0].content|center(10**10) }}"}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_template_that_takes_too_much_costs_its_own_chats_only(open_house, tmp_path, case):
    async with open_house(path=write_model(tmp_path, template=HOSTILE[case]), seams=Seams()) as house:
        for call in (house.generate(HI, timeout=60).read(), house.inference.Tokenize(pb.TokenizeRequest(chat=HI))):
            refused = await house.refusal(call)
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "chat template" in refused.details()
        assert await house.collect("text")


async def test_the_workers_own_deadline_ends_the_wait_for_a_template(open_house, tmp_path):
    loop = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    async with open_house(path=write_model(tmp_path, template=loop), default_timeout_s=0.05) as house:
        refused = await house.refusal(house.generate(HI, timeout=None).read())
        assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "--default-timeout-seconds" in refused.details()


async def test_a_chat_is_rendered_outside_and_its_process_ends_with_the_worker(open_house):
    async with open_house(seams=Seams()) as house:
        assert (await house.collect(HI, timeout=60))[-1].usage.prompt_tokens == 4
        renderer = house.front.worker.served.edition.model.templates
        running = [process._process for process in renderer._pool._processes if process._process is not None]
        assert {process.poll() for process in running} == {None}
    assert all(process.wait(60) for process in running)  # killed, each by a signal


async def test_the_processes_of_a_model_end_when_another_takes_its_place(open_with, other):
    async with open_with() as house:
        await house.collect(HI, timeout=60)
        renderer = house.front.worker.served.edition.model.templates
        await house.swap(other)
        await house.make_ready()
        assert {repr(process) for process in renderer._pool._processes} == {"BoundedProcess(not running)"}
        assert await house.collect(HI, timeout=60)
