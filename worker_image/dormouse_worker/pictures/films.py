"""Frames of a video become a step in time, as transformers' video processors make it, without torchvision.

How large frames are seen is their rule (`smart_resize` of Qwen2-VL's and Qwen3-VL's); all else the model's own image
processor does, which takes a step for an image: its frames stand where an image is repeated. Imported by the image
process alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from dormouse_worker.pictures.decoding import BadPicture

PROCESSOR = "Qwen2VLImageProcessor"  # that makes a step of each of its images
_MOST_STRETCHED = 200  # times as long as wide
_SPARE = 1.05  # over the least pixels, where a frame's share of all is capped
_CAPS = {True: 768, False: 128_000}  # max_video_tokens by its class, where the files do not say it
_BUDGET = 0.9  # of max_video_tokens, where these are of the whole video


@dataclass(frozen=True, slots=True)
class FrameRule:
    """How large the frames of a video are seen, by the settings of its processor."""

    factor: int  # sides are multiples of it
    step: int  # frames that are one step in time
    least: int  # pixels
    most: int
    is_budgeted: bool  # these are of all frames together
    max_tokens: int = 0  # a frame gets no more than its share of so many; 0 = no such cap

    @classmethod
    def read(cls, settings: Mapping[str, Any], processor: Any, *, is_budgeted: bool) -> FrameRule:
        """Return the rule of a processor that was made with these settings."""
        capped = settings.get("cap_pixels_per_frame") is True
        return cls(
            factor=processor.patch_size * processor.merge_size,
            step=processor.temporal_patch_size,
            least=processor.size["shortest_edge"],
            most=processor.size["longest_edge"],
            is_budgeted=is_budgeted,
            max_tokens=int(settings.get("max_video_tokens", _CAPS[is_budgeted])) if capped else 0,
        )

    def seen(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        """Return as how wide and high a frame is seen, of a video of so many. Raises BadPicture."""
        if self.is_budgeted:
            if num_frames < self.step:
                raise BadPicture(f"its video has {num_frames} frame; allowed: {self.step} or more")
            width, height = self._enlarged(width, height)
        if max(width, height) > _MOST_STRETCHED * min(width, height):
            raise BadPicture(
                f"it is {width} × {height} pixels; allowed: at most {_MOST_STRETCHED} times as long as wide"
            )
        count = num_frames if self.is_budgeted else 1
        counted = round(count / self.step) * self.step if self.is_budgeted else 1
        rows, cols = (round(side / self.factor) * self.factor for side in (height, width))
        most = self._most(num_frames)
        if counted * rows * cols > most:
            shrink = math.sqrt((count * height * width) / most)
            rows, cols = (max(self.factor, self._floor(side / shrink)) for side in (height, width))
        elif counted * rows * cols < self.least:
            grow = math.sqrt(self.least / (count * height * width))
            rows, cols = (math.ceil(side * grow / self.factor) * self.factor for side in (height, width))
        return cols, rows

    def _most(self, num_frames: int) -> int:
        """Return the most pixels, with the cap."""
        if not self.max_tokens:
            return self.most
        cap, floor = self.max_tokens * self.factor**2, int(self.least * _SPARE)
        if self.is_budgeted:
            return max(min(cap, self.most // num_frames), floor) * num_frames
        return max(min(self.most, int(cap * _BUDGET) * self.step // num_frames), floor)

    def _enlarged(self, width: int, height: int) -> tuple[int, int]:
        if min(width, height) >= self.factor:
            return width, height
        scale = max(self.factor / height, self.factor / width)
        return int(width * scale), int(height * scale)

    def _floor(self, side: float) -> int:
        return math.floor(side / self.factor) * self.factor


class Films:
    """Makes steps of one model's videos."""

    def __init__(self, processor: Any, setup: Mapping[str, Any]) -> None:
        """`processor` is a PROCESSOR with the settings of the model's video processor, which are in `setup`."""
        self._processor = processor
        self._rule = FrameRule.read(setup["settings"], processor, is_budgeted=setup["is_budgeted"])
        self._key = json.dumps(["video", setup], sort_keys=True).encode()

    def make_step(self, frames: Sequence[Image.Image], num_frames: int) -> tuple[Mapping[str, Any], bytes]:
        """Return a step's tensors, and what they depend on beside the frames' pixels. Raises BadPicture.

        The frames are all of one size; the last is repeated where a step has more.
        """
        own = frames[0].size
        size = self._rule.seen(*own, num_frames) if self._processor.do_resize else own
        resample = Image.Resampling(self._processor.resample)
        seen = [frame.resize(size, resample) for frame in frames]
        return self._join(seen), self._key + repr((own, size)).encode()

    def _join(self, frames: Sequence[Image.Image]) -> dict[str, Any]:
        """Return what the encoder takes of frames as large as they are seen."""
        import numpy as np  # not before it is known what is left out

        made = self._processor(images=[*frames], do_resize=False, return_tensors="np")
        patches, grids = np.asarray(made["pixel_values"]), np.asarray(made["image_grid_thw"])
        step, size = self._rule.step, self._processor.patch_size**2
        each = patches.reshape(len(frames), -1, patches.shape[1] // (step * size), step, size)  # step times the same
        whole = np.empty_like(each[0])
        for time in range(step):
            whole[:, :, time] = each[min(time, len(frames) - 1), :, :, time]
        return {"pixel_values": whole.reshape(-1, patches.shape[1]), "image_grid_thw": grids[:1]}
