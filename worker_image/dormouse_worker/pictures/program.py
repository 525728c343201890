"""The program that decodes and processes images: a process of its own, with bounded memory and no time to waste.

Files come from callers, and decoders have faults: what is here may die. It uses transformers' own image processors, in
their form for Pillow and numpy, and without torch: where torch cannot be imported, transformers does without, which
saves 700 MB and a second at each start. The front writes orders to standard input and reads answers from standard
output; pixels go by files in a folder of the memory's file system.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from dormouse_worker.files.vision_files import PROCESSORS
from dormouse_worker.front.text.orders import REFUSED, TEXT, answer_orders, encode, limit_memory, read
from dormouse_worker.pictures.decoding import BadPicture, PictureLimits, decode
from dormouse_worker.pictures.films import PROCESSOR, Films

_LEFT_OUT = ("torch", "torchvision", "scipy", "pandas", "sklearn", "cv2")
_NOT_ARGUMENTS = (
    *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map"),
    *("cap_pixels_per_frame", "max_video_tokens"),  # of videos
)
_FACTS = ("image_sizes", "image_grid_thw", "rows", "cols", "num_patches", "num_crops", "batch_num_images")
_ONLY_FACTS = frozenset({"rows", "cols", "num_patches", "num_crops"})  # the encoder takes no such argument


class Processing:
    """One model's image processor."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """Import what it needs. Raises whatever transformers raises for bad settings."""
        self._arguments = setup["arguments"]
        self._max_pixels = setup["max_pixels"]
        self._key = json.dumps([setup["processor"], setup["settings"], self._arguments], sort_keys=True).encode()
        self._processor = _make(setup["processor"], setup["settings"])
        self._video = setup["video"]  # None = it sees none

    def run_step(self, sources: Sequence[Path], target: Path, *, num_frames: int) -> str:
        """The same of frames that are one step in time of a video of so many. Raises BadPicture."""
        limits = PictureLimits(self._max_pixels, num_frames)
        frames = [decode(source.read_bytes(), limits) for source in sources]
        if len({frame.size for frame in frames}) > 1:
            sizes = ", ".join(f"{width} × {height}" for width, height in (frame.size for frame in frames))
            raise BadPicture(f"its frames are {sizes} pixels; allowed: all of one size")
        with _refusing():
            films = Films(_make(PROCESSOR, self._video["settings"]), self._video)
            arrays, key = films.make_step(frames, num_frames)
        digest = hashlib.sha256(key)
        for frame in frames:
            digest.update(frame.tobytes())
        return _told(arrays, digest.hexdigest(), target, frame_size=list(frames[0].size))

    def run(self, source: Path, target: Path, *, is_of_several: bool = False) -> str:
        """Process one file, write its tensors; return what is told of them as JSON. Raises BadPicture.

        `is_of_several`: as one of a list of several, for processors that treat one alone in another way.
        """
        import numpy as np  # not before it is known what is left out

        picture = decode(source.read_bytes(), PictureLimits(self._max_pixels))
        digest = hashlib.sha256(self._key + repr(picture.size).encode() + b"of several" * is_of_several)
        digest.update(picture.tobytes())
        with _refusing():
            images = [[picture, Image.new("RGB", (1, 1))]] if is_of_several else [picture]
            made = self._processor(images=images, return_tensors="np", **self._arguments)
        arrays = {name: np.asarray(value)[: 1 if is_of_several else None] for name, value in made.items()}
        return _told(arrays, digest.hexdigest(), target)


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise BadPicture for whatever a processor raises."""
    try:
        yield
    except BadPicture:
        raise
    except MemoryError as error:
        raise BadPicture("it needs more memory than an image may take") from error
    except Exception as error:  # settings of the model, sides of the picture: it can fail in any way
        raise BadPicture(f"the model's processor refuses it: {type(error).__name__}: {error}"[:300]) from error


def _told(arrays: Mapping[str, Any], digest: str, target: Path, **more: list[int]) -> str:
    """Write tensors; return what is told of them."""
    import numpy as np

    facts = {name: arrays[name].reshape(-1).tolist() for name in _FACTS if name in arrays} | more
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name not in _ONLY_FACTS}
    _save(tensors, target)
    shapes = {name: array.shape for name, array in tensors.items()}
    told = {"digest": digest, "shapes": shapes, "values": facts, "num_bytes": target.stat().st_size}
    return json.dumps(told)


def _make(name: str, settings: Mapping[str, Any]) -> Any:
    folder, cls = PROCESSORS[name]
    module = importlib.import_module(f"transformers.models.{folder}.image_processing_pil_{folder}")
    return getattr(module, cls)(**{name: value for name, value in settings.items() if name not in _NOT_ARGUMENTS})


def _save(tensors: Mapping[str, Any], target: Path) -> None:
    from safetensors.numpy import save

    try:
        target.write_bytes(save(dict(tensors)))
    except OSError as error:
        target.unlink(missing_ok=True)
        limit = "see --image-cache-bytes"
        raise BadPicture(f"its tensors do not fit the memory for images ({error.strerror}); {limit}") from error


def answer(processing: Processing, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to an order."""
    try:
        sources, target = [Path(source) for source in order["sources"]], Path(order["target"])
        if "num_frames" in order:
            return {TEXT: processing.run_step(sources, target, num_frames=order["num_frames"])}
        return {TEXT: processing.run(sources[0], target, is_of_several=order["is_of_several"])}
    except BadPicture as error:
        return {REFUSED: str(error)}
    except MemoryError:
        return {REFUSED: "it needs more memory than an image may take"}


def main() -> None:
    """Import what the first message asks for, say so, then process until the front is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the front ends this process when it ends itself
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that is too large is an error, no death
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = read(source)
    if setup is None:
        return
    sys.modules.update(dict.fromkeys(_LEFT_OUT))  # type: ignore[arg-type]  # None: an import of it fails
    logging.disable(logging.CRITICAL)
    try:
        processing = Processing(setup)
    except Exception as error:  # noqa: BLE001  # the settings are the model's: they can be wrong in any way
        sink.write(
            encode({REFUSED: f"the model's image processor cannot be made: {type(error).__name__}: {error}"[:500]})
        )
        return
    limit_memory(setup["memory_bytes"], setup["max_tensor_bytes"])
    answer_orders(source, sink, partial(answer, processing), seconds=setup["seconds"])


if __name__ == "__main__":
    main()
