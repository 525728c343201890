"""The example of a family of models: its package is installed, a worker's front reads answers by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import Script
from tests.examples.test_extend import EXAMPLES
from tests.worker.front.conftest import model_path, open_house
from tests.worker.front.test_answer_parts import chat, told

__all__ = ["model_path", "open_house"]

ANSWER = '<<muse>>H<</muse>>S<<do>>now=>{"z": 1}<<done>>'
TEMPLATE = "{{ messages[0].content }}{# <<do>> <<muse>> #}"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Build the package's wheel and let it be found as an installed one: a wheel is what pip would unpack."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")]
    subprocess.run(command, cwd=EXAMPLES / "arrow_calls", check=True, capture_output=True)
    [wheel] = (tmp_path / "wheels").iterdir()
    monkeypatch.syspath_prepend(wheel)
    yield wheel
    sys.modules.pop("arrow_calls", None)


@pytest.mark.usefixtures("package")
async def test_a_model_whose_template_shows_it_is_read_by_the_packages_family(open_house, tmp_path):
    async with open_house(path=write_model(tmp_path / "model", template=TEMPLATE)) as house:
        tokens = tuple((await house.tokenize(ANSWER)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        asked = pb.AnswerParsing(tool_calls=True, reasoning=True)
        messages = await house.collect(chat("now"), answer_parsing=asked, max_tokens=len(tokens))
        assert told(messages) == {"content": "S", "reasoning": "H", "called": "now", "arguments": '{"z":1}'}


@pytest.mark.usefixtures("package")
async def test_a_request_may_name_it_for_any_model(open_house):
    async with open_house() as house:
        tokens = tuple((await house.tokenize(ANSWER)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        asked = pb.AnswerParsing(tool_calls=True, tool_call_parser="arrows")
        messages = await house.collect(chat("now"), answer_parsing=asked, max_tokens=len(tokens))
        assert told(messages)["called"] == "now"
