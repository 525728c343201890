"""Blocks outlive a worker that drafts by a model or a head: tokens are the same, and drafts as good as before."""

from __future__ import annotations

from dormouse_worker.executor.testing_drafts import draft_always
from tests.worker.executor import draft_kit
from tests.worker.executor.test_draft_heads import Overheard
from tests.worker.executor.test_drafts import Asking, count

GREEDY = {"temperature": 0.0, "max_tokens": 30}
LONG, *OTHERS = ([(step * place) % 250 for place in range(80)] for step in (7, 11, 13))
KNOWN = 76  # of 80 tokens in blocks of 4, the last is always computed


class Keeping:
    """A rank over a directory, which always asks who drafts for all that there is room for."""

    def __init__(self, model, method, drafter, store, worker):
        beside = {"speculation_model": str(drafter)} if drafter else {}
        self.asking = Asking(model, method, worker, starts=False, kv_store_dir=str(store), **beside)
        self.asking.rank.agree(40)
        if drafter:
            draft_always(self.asking.rank.controller._engine)

    def say(self, prompt=LONG):
        """Return what is said, how many tokens were known, and how many drafts were scored and taken; all is kept."""
        (said,), told = self.asking.say([GREEDY], prompt=prompt)
        self.asking.rank.controller._engine.keeper.save_all(60)
        cached = sum(output.cached_tokens for message in told for output in message.outputs)
        return said, cached, count(told)

    def sleep(self):
        self.asking.rank.sleep(2)
        self.asking.rank.wake()

    def evict(self):
        """Have others' tokens in every block."""
        for prompt in OTHERS:
            self.say(prompt)

    def close(self):
        self.asking.close()


def check_read_back(keeping, overheard, said):
    """Check that who has said this says it again, with blocks of the store, and that its head sees the same."""
    before = overheard.take()
    keeping.evict()
    overheard.take()
    assert keeping.say()[:2] == (said, KNOWN)
    after = overheard.take()
    assert len(before.keys() & after.keys()) > 5
    for known in before.keys() & after.keys():
        assert all(one == other for one, other in zip(before[known], after[known], strict=False)), "it sees the same"


def test_a_draft_model_reads_anew_what_a_store_brings_and_is_as_right_as_before(tiny_model, tmp_path):
    same = draft_kit.same(tmp_path / "same", tiny_model)
    keeping = Keeping(tiny_model, "draft", same, tmp_path / "kv", "cpu")
    said, cached, (scored, taken) = keeping.say()
    assert (cached, scored) == (0, taken)
    assert taken > 10
    keeping.evict()
    keeping.asking.rank.controller._executor._wrapper._worker._draft._reach._filled[:] = 4  # all are full of others'
    assert keeping.say() == (said, KNOWN, (scored, taken))
    keeping.sleep()
    assert keeping.say() == (said, KNOWN, (scored, taken))
    keeping.close()
    ignorant = draft_kit.ignorant(tmp_path / "ignorant", tiny_model)
    for method, drafter in (("draft", ignorant), ("off", None)):
        other = Keeping(tiny_model, method, drafter, tmp_path / "kv", "cpu")
        assert other.say()[:2] == (said, KNOWN), "blocks are the target's alone"
        other.close()


def test_a_heads_part_is_kept_with_its_models_and_for_nobody_without_that_head(tiny_model, tmp_path, monkeypatch):
    plain = Keeping(tiny_model, "off", None, tmp_path / "kv", "no torch")
    said, *_ = plain.say()
    plain.close()
    taught = draft_kit.head(tmp_path / "taught", tiny_model, rows=[[*LONG, *said[0]]])
    keeping = Keeping(tiny_model, "eagle", taught, tmp_path / "kv", "no torch")
    overheard = Overheard(keeping.asking, monkeypatch)
    assert keeping.say()[:2] == (said, 0)
    check_read_back(keeping, overheard, said)
    keeping.sleep()
    again, cached, (_, taken) = keeping.say()
    assert (again, cached) == (said, KNOWN)
    assert taken > 0
    keeping.close()
    other = Keeping(tiny_model, "eagle", draft_kit.head(tmp_path / "other", tiny_model), tmp_path / "kv", "no torch")
    assert other.say()[:2] == (said, 0)
    other.close()
