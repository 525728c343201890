"""Images that are kept by digest: of whom, how many, and what a caller is told who names one that is not."""

from hashlib import sha256

import pytest

from dormouse_api.limits import MAX_IMAGES
from dormouse_api.status import IMAGE_UNKNOWN, CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.kept_images import OVERHEAD_BYTES, KeptImages

ONE, OTHER, THIRD = b"one", b"two", b"six"
SIZE = OVERHEAD_BYTES + 3


def key_of(name):
    return (("authorization", f"Bearer {name}"),)


def keeping(num_bytes):
    return KeptImages(num_bytes, Salts("secret"))


def whole(*images):
    return pb.Chat(messages=[pb.ChatMessage(parts=[pb.ContentPart(image=image)]) for image in images])


def named(*images):
    parts = [pb.ContentPart(text="Which?"), *(pb.ContentPart(image_sha256=sha256(image).digest()) for image in images)]
    return pb.Chat(messages=[pb.ChatMessage(parts=parts)])


def filled(kept, chat, who="a"):
    kept.fill(chat, key_of(who))
    return [part.image for message in chat.messages for part in message.parts if part.image]


def refused(kept, chat, who="a"):
    before = chat.SerializeToString()
    with pytest.raises(CallError, match=r"chat.messages is .*; allowed: ") as caught:
        kept.fill(chat, key_of(who))
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert chat.SerializeToString() == before
    return caught.value


def test_a_digest_becomes_the_image_that_came_whole():
    kept = keeping(10 * SIZE)
    assert filled(kept, whole(ONE, OTHER)) == [ONE, OTHER]
    assert filled(kept, named(OTHER, ONE, OTHER)) == [OTHER, ONE, OTHER]
    assert kept.num_bytes == 2 * SIZE
    assert repr(kept) == f"KeptImages(2 of 1 owners, {2 * SIZE} bytes)"


def test_nobody_gets_an_image_of_another_key_nor_learns_of_it():
    kept = keeping(10 * SIZE)
    filled(kept, whole(ONE))
    of_another, of_nobody = refused(kept, named(ONE), "b"), refused(keeping(10 * SIZE), named(ONE), "b")
    assert of_another.message == of_nobody.message
    assert of_another.reason == IMAGE_UNKNOWN
    assert f"sha256:{sha256(ONE).hexdigest()}" in of_another.message
    assert "send the image whole" in of_another.message


def test_where_none_are_kept_it_says_so():
    kept = keeping(0)
    assert filled(kept, whole(ONE)) == [ONE]
    error = refused(kept, named(ONE))
    assert "none (DORMOUSE_KEPT_IMAGE_BYTES is 0)" in error.message
    assert (error.reason, kept.num_bytes) == (IMAGE_UNKNOWN, 0)


def test_what_was_used_longest_ago_goes_first():
    kept = keeping(2 * SIZE)
    filled(kept, whole(ONE, OTHER))
    filled(kept, named(ONE))
    filled(kept, whole(THIRD))
    assert filled(kept, named(ONE, THIRD)) == [ONE, THIRD]
    refused(kept, named(OTHER))


def test_who_holds_most_makes_room_for_others():
    kept = keeping(3 * SIZE)
    filled(kept, whole(ONE), "a")
    filled(kept, whole(ONE, OTHER, THIRD), "b")
    assert filled(kept, named(ONE), "a") == [ONE]
    assert filled(kept, named(OTHER, THIRD), "b") == [OTHER, THIRD]
    filled(kept, whole(ONE), "c")
    assert [filled(kept, named(ONE), who) for who in "ac"] == [[ONE], [ONE]]
    assert kept.num_bytes == 3 * SIZE


def test_an_image_beyond_the_budget_sends_none_away():
    kept = keeping(2 * SIZE)
    filled(kept, whole(ONE, bytes(2 * SIZE)))
    assert kept.num_bytes == SIZE
    assert filled(kept, named(ONE)) == [ONE]


def test_owners_who_have_nothing_left_are_forgotten():
    kept = keeping(SIZE)
    for who in "abcd":
        filled(kept, whole(ONE), who)
    assert repr(kept) == f"KeptImages(1 of 1 owners, {SIZE} bytes)"


def test_limits_hold_for_digests_as_for_images():
    kept = keeping(10 * SIZE)
    filled(kept, whole(ONE))
    assert f"{MAX_IMAGES + 1} images" in refused(kept, named(*[ONE] * (MAX_IMAGES + 1))).message
    bad = pb.Chat(messages=[pb.ChatMessage(parts=[pb.ContentPart(image_sha256=b"short")])])
    error = refused(kept, bad)
    assert ("a digest of 5 bytes" in error.message, error.reason) == (True, "")
