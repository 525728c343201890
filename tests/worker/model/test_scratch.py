"""What passes use again: it grows, and lies where it lay."""

from dormouse_worker.model.scratch import ALIGNMENT_BYTES, Scratch, address_of


def test_it_holds_nothing_before_the_first_pass():
    scratch = Scratch()
    assert (scratch.num_bytes, scratch.pass_size, address_of(scratch.logits)) == (0, (0, 0), 0)


def test_smaller_passes_lie_where_the_largest_lay():
    scratch = Scratch()
    scratch.resize(4, 3, 10, 100)
    logits, workspace, held = address_of(scratch.logits), scratch.workspace_address, scratch.num_bytes
    assert held == 3 * 10 * 4 + 100 + ALIGNMENT_BYTES
    for num_tokens, num_rows in ((1, 1), (4, 2), (9, 0)):
        scratch.resize(num_tokens, num_rows, 10, 100)
        assert scratch.logits.shape == (num_rows, 10)
        assert (scratch.pass_size, scratch.workspace_address) == ((num_tokens, num_rows), workspace)
    scratch.resize(4, 3, 10, 100)
    assert (address_of(scratch.logits), scratch.num_bytes) == (logits, held)


def test_it_grows_for_a_larger_pass_and_its_workspace_is_aligned():
    scratch = Scratch()
    for num_rows in (1, 5, 70):
        scratch.resize(num_rows, num_rows, 7, 13 * num_rows)
        assert scratch.logits.shape == (num_rows, 7)
        assert scratch.workspace_address % ALIGNMENT_BYTES == 0
    assert repr(scratch) == f"Scratch({70 * 7 * 4 + 13 * 70 + ALIGNMENT_BYTES} bytes)"
