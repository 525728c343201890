"""An embedder and a model that chats take turns on one stand-in device under grants, as two members of a pool do."""

from __future__ import annotations

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_pooling import write_tiny_encoder
from tests.integration.test_sleep import sleep, wake
from tests.integration.test_standby import ASLEEP, BUDGET, MIB, PROMPT, READY, STANDBY, TOTAL, agree, grant, revoke

FLAGS = ("--device", "cuda", "--max-model-len", "64", "--max-num-batched-tokens", "64", "--device-grants")
TEXTS = ["nut", "a nest of hazel"]


def embed(worker):
    """Return the texts' vectors."""
    asked = pb.EmbedRequest(inputs=[pb.EmbedInput(text=text) for text in TEXTS])
    return [tuple(one.values) for one in worker.inference.Embed(asked, timeout=60).embeddings]


def test_each_answers_in_its_turn_what_it_answered_before(start_worker, tmp_path_factory):
    device = tmp_path_factory.mktemp("devices") / "gpu-0"
    offer_device(device, TOTAL)
    seen = ["env", f"STAND_IN_DEVICES={device.parent}"]
    embedder = start_worker(write_tiny_encoder(tmp_path_factory.mktemp("encoder")), *FLAGS, prefix=seen)
    chatter = start_worker(write_tiny_model(tmp_path_factory.mktemp("decoder")), *FLAGS, prefix=seen)
    turns = ((embedder, embed), (chatter, lambda worker: worker.greedy(PROMPT, 8)))

    said = []
    for slot_epoch, (worker, ask) in enumerate(turns, start=1):
        assert worker.status().state == STANDBY
        grant(worker, 10 * slot_epoch)
        wake(worker)
        agree(worker)
        said.append(ask(worker))
        assert sleep(worker, 1).state == ASLEEP
        revoke(worker, 10 * slot_epoch + 1)
    for slot_epoch, ((worker, ask), expected) in enumerate(zip(turns * 2, said * 2, strict=True), start=3):
        grant(worker, 10 * slot_epoch)
        assert wake(worker).state == READY
        assert ask(worker) == expected
        assert sleep(worker, 1).state == ASLEEP
        revoke(worker, 10 * slot_epoch + 1)
    usage = read_usage(device)
    assert (usage.marks.most_awake, usage.violations, usage.marks.over_budget_bytes) == (1, (), 0)
    assert usage.marks.highest_bytes <= BUDGET + 16 * MIB
