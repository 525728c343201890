"""An engine over a fake that sees, and what it must say."""

import msgspec

from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, next_token, see
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.engine_kit import finish

PLACEHOLDER = 9


class Gallery:
    """An engine over a fake that sees, and a folder of files that nobody reads."""

    def __init__(
        self,
        folder,
        *,
        num_blocks=40,
        host_blocks=0,
        rows=16,
        tokens=8,
        seqs=4,
        caches=True,
        length=32,
        are_whole=False,
    ):
        report = make_report(
            num_gpu_blocks=num_blocks, image_rows=rows, max_model_len=length, images_are_whole=are_whole
        )
        self.folder = folder
        clock = ManualClock()
        self.executor = FakeExecutor(report, clock)
        settings = EngineSettings(
            model="m",
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            enable_prefix_caching=caches,
            image_dir=str(folder),
        )
        self.engine = build_engine(settings, report, (num_blocks, host_blocks), self.executor, clock=clock)
        self.scheduler = self.engine._scheduler
        self.expected = {}

    def image(self, number, *spans):
        name = f"{number}.safetensors"
        (self.folder / name).write_bytes(b"x" * 10)
        return ImageInput(digest_of(number), list(spans), name, 10)

    def add(self, name, parts, max_tokens=4, outputs=(), **sampling):
        """Add a request of runs of text (their tokens) and images (number, rows…); return the message."""
        tokens, images = [], []
        for part in parts:
            if isinstance(part, list):
                tokens += part
                continue
            number, *counts = part
            spans = []
            for count in counts:
                spans.append((len(tokens), count))
                tokens += [PLACEHOLDER] * count
            images.append(self.image(number, *spans))
        message = make_add(name, tokens, max_tokens=max_tokens, **sampling)
        message = msgspec.structs.replace(message, images=images, output_token_ids=list(outputs))
        assert self.engine.add(message) is None
        self.expected[name] = self._answer(tokens, images, max_tokens)[len(outputs) :]
        return message

    def _answer(self, tokens, images, count):
        known = list(tokens)
        while len(known) < len(tokens) + count:
            known.append(next_token(see(known, images)))
        return known[len(tokens) :]

    def run(self):
        """Step until idle; all must have said what the fake says of their images."""
        expected, self.expected = self.expected, {}
        assert finish(self.engine, {name: [] for name in expected}) == expected

    @property
    def encoded(self):
        """Return the numbers of images in the order in which they were encoded."""
        return [number for batch in self.encoded_by_pass for number in batch]

    @property
    def encoded_by_pass(self):
        return [[image.digest[0] for image in batch.encode] for batch in self.executor.batches]


def digest_of(number):
    return bytes([number]) * 32
