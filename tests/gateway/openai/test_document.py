"""The OpenAPI document is right about everything that a machine can try."""

import copy

import pytest
from hypothesis import HealthCheck, Phase, settings
from schemathesis import openapi

from dormouse_gateway.openai.audio.asking import AUDIO_DOORS
from dormouse_gateway.openai.document import document
from dormouse_gateway.openai.doors import DECISIONS_DOOR, DOORS, TOKENIZE_DOOR
from dormouse_gateway.openai.pictures import BASE64, SOUND_URL, URL, VIDEO_URL
from dormouse_gateway.openai.schemas import MESSAGES
from tests.gateway.openai.in_thread import running_in_thread

EXAMPLES = 25
NULL = {"type": "null"}
TOLD_IN_WORDS = (
    "echo",
    "prompt_logprobs",
    "structured_outputs",
    "n",
    "max_tokens",
    "continue_final_message",
    "tool_choice",
)  # what they do not go together with


def with_images(found):
    """Return the document with an image, a video or a sound wherever it says in words what one is."""
    if isinstance(found, list):
        return [with_images(one) for one in found]
    if not isinstance(found, dict):
        return found
    known = {URL["description"]: "data:image/png;base64,YQ==", BASE64["description"]: "YQ=="}
    known |= {VIDEO_URL["description"]: "data:video/jpeg;base64,YQ=="}
    known |= {SOUND_URL["description"]: "data:audio/wav;base64,YQ=="}
    said = found.get("description")
    if isinstance(said, str) and said in known:
        return {"enum": [known[said]]}
    made = {name: with_images(one) for name, one in found.items()}
    if made.get("type") == "array" and made != found:  # three deep: no more images than a request may have
        made["maxItems"] = 2
    return made


def described():
    """Return the document with the one model that is there, so that some requests get past its name."""
    found = with_images(copy.deepcopy(document()))
    for (
        door
    ) in AUDIO_DOORS:  # a form says everything in text: no value of it is of a wrong type (test_audio tries them)
        del found["paths"][door.path]
    for path in (door.path for door in DOORS):
        body = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        body["properties"]["model"] = {"enum": ["tiny", "none"]}
        body["properties"] |= {
            name: NULL for name in TOLD_IN_WORDS if name in body["properties"] and name not in body["required"]
        }
        if path == DECISIONS_DOOR.path:  # values of choices are there once, and outputs have calls
            (sample,) = [
                one
                for one in body["properties"]["questions"]["items"]["anyOf"]
                if one["properties"]["type"]["enum"] == ["score"]
            ]
            body["properties"] |= {
                "input": {"type": "string", "minLength": 1},
                "questions": {**body["properties"]["questions"], "items": sample},
            }
        if "text_1" in body["properties"]:  # several are as many as text_2 has
            body["properties"]["text_1"] = {"type": "string", "minLength": 1}
        if path == TOKENIZE_DOOR.path:  # messages, or else a prompt
            body["properties"] |= {"prompt": NULL, "messages": with_images(MESSAGES)}
            body["required"].append("messages")
    return found


@pytest.fixture(scope="module")
def url():
    with running_in_thread() as made:
        yield made


schema = openapi.from_dict(described())
rejected = schema.config.checks.negative_data_rejection
rejected.expected_statuses = [*rejected.expected_statuses, "413"]  # a body that is wrong and too large


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_nothing_is_found(case, url):
    case.call_and_validate(base_url=url)
