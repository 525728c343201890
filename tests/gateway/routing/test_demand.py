"""What a request costs, and which begin alike. Pure."""

from google.protobuf.struct_pb2 import Struct

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.demand import ASSUMED_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS, PREFIX_CHARS, read_demand
from dormouse_gateway.routing.policy import NOTHING

LONG = "You are a helpful assistant who answers in one sentence, and never says more than that. "


def demand(*, salt="", num_bytes=400, **fields):
    return read_demand(pb.GenerateRequest(**fields), num_bytes=num_bytes, salt=salt)


def prefix(**fields):
    return demand(**fields).prefix


def ids(*tokens):
    return pb.TokenIds(ids=tokens)


def chat(*contents, first="user", tools=()):
    roles = [first, "assistant"] if first == "user" else ["system", "user", "assistant"]
    turns = [*roles, *["user", "assistant"] * len(contents)]
    messages = [pb.ChatMessage(role=role, content=content) for role, content in zip(turns, contents, strict=False)]
    return pb.Chat(messages=messages, tools=tools)


def test_token_ids_are_counted_and_everything_else_is_estimated_from_its_bytes():
    assert demand(token_ids=ids(*range(37))).prompt_tokens == 37
    assert demand(text="a", num_bytes=4000).prompt_tokens == 1000
    assert demand(chat=chat("a"), num_bytes=4000).prompt_tokens == 1000


def test_output_is_what_is_allowed_of_each_choice_within_reason():
    assert demand(text="a").output_tokens == ASSUMED_OUTPUT_TOKENS
    params = pb.SamplingParams(max_tokens=10, n=3)
    assert demand(text="a", sampling_params=params, stream_interval=5).tokens == 100 + 3 * 10
    assert demand(text="a", stream_interval=5).tokens_per_message == 5
    greedy = demand(text="a", sampling_params=pb.SamplingParams(max_tokens=(1 << 32) - 1, n=(1 << 32) - 1))
    assert (greedy.output_tokens, greedy.num_choices) == (MAX_OUTPUT_TOKENS, 16)


def test_what_does_not_generate_costs_nothing_and_has_no_prefix():
    assert read_demand(pb.TokenizeRequest(text=LONG * 100), num_bytes=10_000, salt="") == NOTHING


def test_texts_that_begin_alike_have_one_prefix_and_others_have_another():
    beginning = (LONG * 20)[:PREFIX_CHARS]
    assert prefix(text=beginning + "a") == prefix(text=beginning + "b" * 100_000) is not None
    assert prefix(text="x" + beginning) != prefix(text=beginning)
    assert prefix(text=LONG) != prefix(text=LONG + "a"), "shorter ones are alike if they are equal"


def test_token_ids_that_begin_alike_have_one_prefix():
    assert prefix(token_ids=ids(*range(300))) == prefix(token_ids=ids(*range(256), 7)) is not None
    assert prefix(token_ids=ids(*range(300))) != prefix(token_ids=ids(1, *range(1, 300)))


def test_a_prompt_shorter_than_a_block_has_none():
    assert [prefix(text="hi"), prefix(chat=chat("hi")), prefix(token_ids=ids(1, 2)), prefix()] == [None] * 4


def test_all_turns_of_a_conversation_have_one_prefix():
    turns = [LONG, "Hello!", "What is a dormouse?", "A rodent.", "And what does it do?"]
    assert len({prefix(chat=chat(*turns[: 2 * count + 1])) for count in range(3)}) == 1
    with_system = [chat(LONG, *turns[: 2 * count + 1], first="system") for count in range(3)]
    assert len({prefix(chat=one) for one in with_system}) == 1
    assert prefix(chat=chat(LONG, "one", first="system")) != prefix(chat=chat(LONG, "two", first="system"))


def test_a_conversation_that_begins_with_few_words_gets_its_prefix_later_and_keeps_it():
    turns = ["hi", LONG, "more", "yes", "and more"]
    found = [prefix(chat=chat(*turns[: 2 * count + 1])) for count in range(3)]
    assert found[0] is None
    assert found[1] == found[2] is not None


def test_long_system_prompts_and_tools_are_what_conversations_share():
    shared = LONG * 20
    assert prefix(chat=chat(shared, "one", first="system")) == prefix(chat=chat(shared, "two", first="system"))
    tool, other = Struct(), Struct()
    tool.update({"name": "search", "description": shared})
    other.update({"name": "search", "description": "Another. " + shared})
    assert prefix(chat=chat("one", tools=[tool])) == prefix(chat=chat("two", tools=[tool])) is not None
    assert prefix(chat=chat("one", tools=[other])) != prefix(chat=chat("one", tools=[tool]))


def test_callers_whose_blocks_are_kept_apart_have_different_prefixes():
    assert len({prefix(text=LONG, salt=salt) for salt in ("", "a", "b")}) == 3
    assert prefix(text=LONG, salt="a") == prefix(text=LONG, salt="a")


def test_an_adapter_is_known_by_its_name_and_the_base_by_none():
    def adapter_of(name):
        return read_demand(pb.GenerateRequest(text="x"), num_bytes=1, salt="", adapter=name).adapter

    assert adapter_of("") is None
    assert adapter_of("sql") == adapter_of("sql") != adapter_of("legal")
    assert read_demand(pb.GenerateRequest(text="x"), num_bytes=1, salt="", adapter="sql").rest(1).adapter is not None


def shown(*images, text="What is it?"):
    parts = [pb.ContentPart(text=text), *(pb.ContentPart(image=image) for image in images)]
    return pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])


def test_chats_about_one_image_begin_alike_and_about_another_do_not():
    one, other = b"a" * 5000, b"a" * 4999 + b"b"
    assert prefix(chat=shown(one)) == prefix(chat=shown(one)) is not None
    assert prefix(chat=shown(one)) != prefix(chat=shown(other))
    assert prefix(chat=shown(one, other)) != prefix(chat=shown(other, one))
    assert prefix(chat=shown(text="a" * 5000)) == prefix(chat=shown(one, text="a" * 5000)), "only the beginning counts"


def test_an_image_costs_tokens_and_not_its_bytes():
    image = bytes(1_000_000)
    assert demand(chat=shown(image, image), num_bytes=2_000_400).prompt_tokens == 100 + 2 * 576
