"""Weights of few bits beside llama.cpp's, OpenVINO's and ONNX's: W2 and W4 of q05, perplexity beside GGUF's formats.

All engines answer in turns and rest while another is asked; medians of the repetitions count. llama.cpp has GGUF files
in Q8_0 and Q4_0 (the embedding in Q8_0), OpenVINO int8 with a scale for each output and int4 with one for 64 inputs,
onnxruntime-genai int4 with one for 32, also in the head. W4 is 64 requests of 32 tokens out, of one length, which
OpenVINO computes as one static batch. `--models tiny` measures perplexity alone: under our int8 and int4, and under
weights as GGUF rounds them, in our kernels, which round no rows. Without `make bench-processor-peers` there is nobody
to compare with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import gguf
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from bench.gguf_model import ensure_gguf
from bench.helpers import Helper
from bench.limits import use_threads
from bench.models import ensure_model
from bench.options import Options, main
from bench.processor_env import MAKE, PEERS
from bench.quantized import (
    METHODS,
    NAMES,
    NUM_WINDOWS,
    W4_OUT,
    WINDOW,
    Laps,
    documents,
    laps_of,
    library_text,
    perplexity,
    requests_of,
    windows_of,
)
from bench.race import cores_of
from bench.replies import tokens_per_s, tpot_ms, ttft_ms
from bench.results import PICTURES, Goal, RatioAtLeast, RatioAtMost, Row
from bench.sleep_picture import Bar, draw
from tools.demo_model import demo_model_dir
from tools.train_model import Recipe
from tools.train_model import make as train

MODEL, TRAINED = "q05", "tiny"  # of --models
LLAMA, OPENVINO, ONNX = "llama.cpp", "OpenVINO", "onnxruntime-genai"
FORMATS = {"int8": "Q8_0", "int4": "Q4_0"}  # of GGUF, beside ours
METHODS_OF_PEERS = tuple(FORMATS)
TOKEN_GOALS: Mapping[tuple[str, str], Goal] = {  # "so many times as fast", as times
    (LLAMA, "int8"): RatioAtMost(1 / 1.25),
    (OPENVINO, "int8"): RatioAtMost(1 / 1.25),
    (LLAMA, "int4"): RatioAtMost(1 / 1.3),
    (ONNX, "int4"): RatioAtMost(1 / 1.3),
}
FIRST_GOALS: Mapping[tuple[str, str], Goal] = {
    (OPENVINO, "int8"): RatioAtMost(1 / 1.3),
    (OPENVINO, "int4"): RatioAtMost(1 / 1.15),
}
WIDE_GOALS: Mapping[str, Goal] = {"int8": RatioAtLeast(1.2), "int4": RatioAtLeast(1.15)}


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    rows = list(_speed(options, console)) if MODEL in options.models else []
    return rows + (list(_perplexities(options, console)) if TRAINED in options.models else [])


def _speed(options: Options, console: Console) -> Iterator[Row]:
    if not PEERS.is_made:
        console.print(f"  the programs to compare with are not there: {MAKE}", style="yellow", highlight=False)
        return
    use_threads(options)
    model, threads = str(ensure_model(MODEL, "bf16")), str(options.threads or len(cores_of(options)))
    with ExitStack() as stack:
        ours = {
            NAMES[method]: stack.enter_context(Helper("bench.ours", model, threads, method, rests=True))
            for method in METHODS
        }
        openvino = {
            f"{OPENVINO} {method}": stack.enter_context(_peer("bench.openvino_peer", model, method, threads))
            for method in METHODS_OF_PEERS
        }
        llama = {
            f"{LLAMA} {method}": stack.enter_context(
                _peer("bench.llamacpp_peer", str(ensure_gguf(MODEL, kind)), threads)
            )
            for method, kind in FORMATS.items()
        }
        onnx = {f"{ONNX} int4": stack.enter_context(_peer("bench.onnx_peer", model, threads))}
        rounds = range(options.reps + 1)
        alone = laps_of(
            {**ours, **openvino, **llama, **onnx}, [requests_of("W2", MODEL, rep, options) for rep in rounds], console
        )
        wide = laps_of({**ours, **openvino}, [requests_of("W4", MODEL, rep, options) for rep in rounds], console)
    if options.results_dir:
        ((options.out or PICTURES) / "quantized.svg").write_text(draw_answers(alone), "utf-8")
    yield from alone_rows(alone)
    yield from wide_rows(wide)


def _peer(module: str, *arguments: str) -> Helper:
    return Helper(module, *arguments, python=PEERS.python, rests=True)


def alone_rows(laps: Laps) -> Iterator[Row]:
    """Yield times to the first token and per token, ours beside theirs of as many bits."""
    first, each = _times_ms(laps)
    for method, kind in FORMATS.items():
        for peer, known_as in ((LLAMA, kind), (OPENVINO, method), (ONNX, method)):
            what, side, key = f"{MODEL} {method} beside {peer} {known_as}", f"{peer} {method}", (peer, method)
            if side not in laps:
                continue
            yield Row(f"time per output token W2, {what}", each[method], "ms", each[side], TOKEN_GOALS.get(key))
            yield Row(f"time to first token W2, {what}", first[method], "ms", first[side], FIRST_GOALS.get(key))


def _times_ms(laps: Laps) -> tuple[dict[str, float], dict[str, float]]:
    """Return each side's time to the first token, and per token."""
    first = {side: median(map(ttft_ms, replies)) for side, replies in laps.items()}
    return first, {side: median(map(tpot_ms, replies)) for side, replies in laps.items()}


def draw_answers(laps: Laps) -> str:
    """Return a picture of one request's time: its first token, and the others."""
    first, each = _times_ms(laps)
    count = max(len(reply.tokens) for replies in laps.values() for lap in replies for reply in lap)
    known_as = {f"{LLAMA} {method}": f"{LLAMA} {kind}" for method, kind in FORMATS.items()}
    bars = [
        Bar(known_as.get(side, side), {"first token": first[side] / 1e3, "others": (count - 1) * each[side] / 1e3})
        for side in laps
    ]
    return draw(f"One request for {count} tokens, {MODEL}", bars)


def wide_rows(laps: Laps) -> Iterator[Row]:
    """Yield output tokens per second of many requests at once, ours beside OpenVINO's of as many bits."""
    rate = {side: median(map(tokens_per_s, laps[side])) for side in laps}
    for method, goal in WIDE_GOALS.items():
        what = f"W4 of {W4_OUT} out, {MODEL} {method} beside {OPENVINO} {method}"
        yield Row(what, rate[method], "tok/s", rate[f"{OPENVINO} {method}"], goal)


def _perplexities(options: Options, console: Console) -> Iterator[Row]:
    models = {
        "model of make model": (train(Recipe()), library_text(), ("int8", "int4")),
        "SmolLM2-135M": (demo_model_dir(), documents(), ("int8",)),  # its weights had 4 bits before
    }
    for name, (model, text, methods) in models.items():
        windows = windows_of(model, text, WINDOW, NUM_WINDOWS)
        for method in methods:
            kind = FORMATS[method]
            with tempfile.TemporaryDirectory() as folder:
                _round_as_gguf(model, kind, Path(folder))
                theirs = perplexity(Path(folder), windows, options)
            ours = perplexity(model, windows, options, quantization=method)
            console.print(f"  {name}: {method} {ours:.2f}, {kind} {theirs:.2f}", highlight=False)
            yield Row(f"perplexity, {name} {method} beside GGUF's {kind}", ours, "", theirs, RatioAtMost(1))


def _round_as_gguf(model: Path, kind: str, to: Path) -> None:
    """Write a model's directory with the plain weights that GGUF's blocks of it stand for; embeddings in Q8_0."""
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            (to / path.name).symlink_to(path)
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            chosen = gguf.GGMLQuantizationType["Q8_0" if "embed_tokens" in name or "lm_head" in name else kind]
            blocks = gguf.quantize(tensor.float().numpy(), chosen)
            tensors[name] = torch.from_numpy(gguf.dequantize(blocks, chosen)).to(tensor.dtype)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main("quantized_peers", __doc__, measure)
