"""Questions about pictures as clients send them: OpenAI's chat over HTTP, an image in a `data:` URL."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
from PIL import Image

PATH = "/v1/chat/completions"
QUESTION = "What is on this image?"
BLOCK_PIXELS = 256  # of the side of what is another in each picture
TIMEOUT_S = 600


def pictures(width: int, height: int) -> Iterator[bytes]:
    """Yield JPEG files without end, of which each shows something else: a coarse noise, and a finer block upon it."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    while True:
        fine = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        picture.paste(Image.fromarray(fine).resize((BLOCK_PIXELS, BLOCK_PIXELS), Image.Resampling.NEAREST))
        file = io.BytesIO()
        picture.save(file, "JPEG")
        yield file.getvalue()


def ask(port: int, model: str, picture: bytes, max_tokens: int) -> int:
    """Return the answer's tokens. Raises RuntimeError with the words of who refuses."""
    url = f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{PATH}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read()[:500]!r}") from error
