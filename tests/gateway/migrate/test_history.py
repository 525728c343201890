"""What is kept of live streams stays within bounds, and all of it is given back."""

from hypothesis import given
from hypothesis import strategies as st

from dormouse_gateway.migrate.history import _OVERHEAD_BYTES, ByteBudget, History


def test_messages_are_kept_in_order_and_their_room_is_given_back():
    room = ByteBudget(total_bytes=1000, stream_bytes=1000)
    with History(room) as history:
        history.add(b"a" * 10)
        history.add(b"b")
        assert history.messages == [b"a" * 10, b"b"]
        assert room.used_bytes == 11 + 2 * _OVERHEAD_BYTES
    assert room.used_bytes == 0


def test_a_stream_that_outgrows_its_room_keeps_only_the_last_message_and_takes_no_room():
    room = ByteBudget(total_bytes=1000, stream_bytes=2 * _OVERHEAD_BYTES + 2)
    with History(room) as history:
        for raw in (b"a", b"b", b"c", b"d"):
            history.add(raw)
        assert history.is_cut
        assert (history.messages, history.last, history.num_messages) == ([], b"d", 4)
        assert room.used_bytes == 0
        assert repr(history) == "History(4 messages, 0 bytes, cut)"


def test_streams_share_what_all_may_keep():
    room = ByteBudget(total_bytes=2 * _OVERHEAD_BYTES, stream_bytes=1000)
    with History(room) as first, History(room) as second:
        for history in (first, second, first):
            history.add(b"")
        assert (first.is_cut, second.is_cut) == (True, False)
        second.add(b"")
        assert not second.is_cut, "the other's room is free again"


def test_messages_that_were_taken_out_to_be_read_still_count():
    room = ByteBudget(total_bytes=1000, stream_bytes=1000)
    with History(room) as history:
        history.add(b"a")
        assert history.take_messages() == [b"a"]
        assert repr(room) == f"ByteBudget({1 + _OVERHEAD_BYTES} of 1000 bytes)"
    assert room.used_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=200))), st.integers(0, 2000), st.integers(0, 800))
def test_the_bounds_hold_whatever_comes(arrivals, total_bytes, stream_bytes):
    room = ByteBudget(total_bytes=total_bytes, stream_bytes=stream_bytes)
    histories = [History(room) for _ in range(4)]
    for index, raw in arrivals:
        histories[index].add(raw)
        kept = [sum(len(raw) + _OVERHEAD_BYTES for raw in history.messages) for history in histories]
        assert room.used_bytes == sum(kept) <= total_bytes
        assert max(kept) <= stream_bytes
    for history in histories:
        history.__exit__()
    assert room.used_bytes == 0
