"""The books of a device, as arithmetic and as a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger import MAX_ROWS, PAGE_BYTES, Books, Marks, Row, from_page, to_page

SIZES = st.integers(0, (1 << 62) - 1)
ROWS = st.builds(Row, SIZES, SIZES, SIZES, SIZES)


@given(
    st.builds(Marks, SIZES, st.integers(0, MAX_ROWS), SIZES, SIZES),
    st.dictionaries(st.integers(0, MAX_ROWS - 1), ROWS.filter(lambda row: row != Row())),
)
def test_a_page_says_what_the_books_say(marks, rows):
    books = Books(100, marks, rows)
    page = to_page(books)
    assert len(page) <= PAGE_BYTES
    assert from_page(page, 100) == books


def test_a_page_over_a_longer_one_leaves_nothing_of_it():
    crowd = Books(100, rows={number: Row(held_bytes=1) for number in range(9)})
    alone = Books(100, rows={0: Row(held_bytes=7)})
    written = to_page(alone)
    assert from_page(written + to_page(crowd)[len(written) :], 100) == alone


def test_an_empty_page_is_a_device_that_nobody_used():
    assert from_page(b"", 100) == Books(100)


def test_what_is_taken_comes_out_of_the_promise_first():
    books = Books(100).promise(0, 60)
    assert (books.used_bytes, books.awake) == (60, (0,))
    books = books.take(0, 40)
    assert books.rows[0] == Row(held_bytes=40, promised_bytes=20)
    books = books.take(0, 50)
    assert books.rows[0] == Row(held_bytes=90)
    assert books.promise(0, 0) == books


def test_a_promise_is_no_more_than_what_is_free_and_was_promised_before():
    books = Books(100).take(1, 30).promise(0, 60)
    assert books.promise(0, 70).free_bytes == 0
    with pytest.raises(DeviceOutOfMemory) as caught:
        books.promise(0, 71)
    assert (caught.value.wanted_bytes, caught.value.free_bytes) == (71, 70)


def test_a_context_counts_and_does_not_keep_a_process_awake():
    books = Books(100).enter(0, 0).open_context(0, 16).take(0, 4).give(0, 4)
    assert (books.used_bytes, books.awake) == (16, ())
    assert books.marks == Marks(highest_bytes=20, most_awake=1)


def test_marks_never_fall():
    books = Books(100).enter(0, 50).take(0, 80).take(1, 20).refuse(5).refuse(3)
    marks = Marks(highest_bytes=100, most_awake=2, over_size_bytes=5, over_budget_bytes=30)
    assert books.marks == marks
    assert books.leave(0, 1) == Books(100, marks)
    books.check_integrity()


def test_more_is_not_given_back_than_is_held():
    with pytest.raises(AssertionError, match="6 bytes are given back, 5 are held"):
        Books(100).take(0, 5).give(0, 6)


@pytest.mark.parametrize(
    "books",
    [Books(10, Marks(11, 1), {0: Row(held_bytes=11)}), Books(10, Marks(), {0: Row(held_bytes=1)})],
    ids=["more than there is", "a mark below what is"],
)
def test_books_that_are_wrong_are_found(books):
    with pytest.raises(AssertionError):
        books.check_integrity()
