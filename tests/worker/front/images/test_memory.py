"""A thousand large pictures leave nothing behind: neither in the front, nor in its processes, nor in shared memory."""

import os
from pathlib import Path

import numpy as np
import pytest

from dormouse_worker.front.images.desk import ImageDesk
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.limits import ImageLimits
from tests.worker.front.images.kit import encoded, picture
from tests.worker.front.images.test_desk import SPEC

NUM_IMAGES = 1000
FIRST = 200  # until everything is as large as it gets
MAX_SLOPE_BYTES = 16 << 10  # for an image of 36 MB: what is kept of one would be a thousand times that


def resident_bytes(pids):
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_thousand_pictures_of_twelve_megapixels_leave_nothing(tmp_path):
    file = encoded(picture(4000, 3000), "JPEG")
    desk = ImageDesk(SPEC, ImageLimits(cache_bytes=100_000, seconds=600.0), folder=tmp_path)
    sizes = []
    for number in range(NUM_IMAGES):
        held = HeldImages()
        await desk.hold(held, [file + number.to_bytes(4, "big")], caller=f"{number % 2}", salt="")  # another file each
        held.release()
        running = [one._process.pid for one in desk._pool._processes if one._process]
        sizes.append(resident_bytes([os.getpid(), *running]))
    slope, _ = np.polyfit(range(FIRST, NUM_IMAGES), sizes[FIRST:], 1)
    print(f"{slope:.0f} bytes an image, {sizes[FIRST] >> 20} MiB")
    assert slope < MAX_SLOPE_BYTES
    assert desk.files.num_bytes <= desk.files.budget_bytes
    assert len(list(tmp_path.glob("*.safetensors"))) < 10
    desk.close()
