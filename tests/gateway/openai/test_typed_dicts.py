"""No parameter that a client library knows is ignored in silence: each is taken or refused by its name."""

import pytest
from anthropic.types import MessageCountTokensParams
from anthropic.types import message_create_params as message
from openai.types import completion_create_params as completion
from openai.types import decision_create_params as decision
from openai.types import embedding_create_params as embedding
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as response

from dormouse_gateway.openai.checking import check
from dormouse_gateway.openai.doors import (
    CHAT_DOOR,
    COMPLETION_DOOR,
    COUNT_DOOR,
    DECISIONS_DOOR,
    DOORS,
    EMBEDDINGS_DOOR,
    MESSAGES_DOOR,
    RESPONSES_DOOR,
)
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.reading import read_body
from tools.pages.http import rows

KNOWN = {
    CHAT_DOOR.path: chat.CompletionCreateParamsStreaming,
    COMPLETION_DOOR.path: completion.CompletionCreateParamsStreaming,
    RESPONSES_DOOR.path: response.ResponseCreateParamsStreaming,
    MESSAGES_DOOR.path: message.MessageCreateParamsStreaming,
    COUNT_DOOR.path: MessageCountTokensParams,
    DECISIONS_DOOR.path: decision.DecisionCreateParams,
    EMBEDDINGS_DOOR.path: embedding.EmbeddingCreateParams,
}


@pytest.mark.parametrize("door", [door for door in DOORS if door.path in KNOWN], ids=lambda door: door.path)
def test_every_parameter_of_the_clients_stands_in_the_table(door):
    typed = KNOWN[door.path]
    known = typed.__required_keys__ | typed.__optional_keys__
    assert len(known) >= 5
    assert known - {name for name, _, _ in rows(door)} == set()


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.path)
def test_every_parameter_of_the_table_says_what_it_does_and_only_once(door):
    told = list(rows(door))
    assert len({name for name, _, _ in told}) == len(told)
    assert [name for name, _, what in told if len(what) < 4] == []


@pytest.mark.parametrize(("door", "name"), [(door, name) for door in DOORS for name in door.refused])
def test_what_the_table_refuses_is_refused_by_name(door, name):
    with pytest.raises(ApiError) as caught:
        read_body(f'{{"{name}": 1}}'.encode(), door.schema, door.refused)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.path)
def test_what_nobody_knows_is_refused_by_name_too(door):
    with pytest.raises(ApiError, match="nonsense is not supported"):
        check({"nonsense": 1}, {**door.schema, "required": []})


def objects_of(schema):
    """Yield every object that a schema describes."""
    if "properties" in schema:
        yield schema
    items = [schema["items"]] if "items" in schema else []
    for one in [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *items]:
        yield from objects_of(one)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.path)
def test_what_nobody_knows_is_refused_within_parameters_too(door):
    assert [one for one in objects_of(door.schema) if one.get("additionalProperties") is not False] == []
