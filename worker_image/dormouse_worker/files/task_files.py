"""What a model's files say of its task: its architecture, and the modules that sentence-transformers puts behind it.

Reads JSON only; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import CLASSIFY, EMBED, GENERATE, ONE_RANK, SCORE, TRANSCRIBE
from dormouse_worker.files.head_files import is_classifier, read_head
from dormouse_worker.files.json_files import read_json
from dormouse_worker.files.speech_files import LISTENER, hears

MODULES_FILE = "modules.json"
MEAN, CLS, LAST, MAX, MEAN_SQRT, WEIGHTED = "mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"
POOLING_MODES = (CLS, MAX, MEAN, MEAN_SQRT, WEIGHTED, LAST)  # in the order in which several are joined
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")


@dataclass(frozen=True, slots=True)
class Dense:
    """A layer behind the pooling."""

    folder: Path
    activation: str  # qualified name of a torch module; Identity where there is none


@dataclass(frozen=True, slots=True)
class Pooling:
    """How hidden states become one vector."""

    modes: tuple[str, ...] = (LAST,)  # joined one behind the other
    dense: tuple[Dense, ...] = ()
    normalizes: bool = True
    max_length: int = 0  # tokens that the model was made for; 0 = not told
    dimensions: tuple[int, ...] = ()  # to which vectors may be cut; () = any


def task_of(settings: EngineSettings, config: Mapping[str, Any]) -> str:
    """Return the task: as set, or by the files. Raises InvalidSettings for what the task cannot be combined with."""
    task = settings.task if settings.task != "auto" else _by_files(settings.model_path, config)
    if task in ONE_RANK:
        _check_alone(settings, config, task)
    return task


def read_pooling(path: Path, config: Mapping[str, Any]) -> Pooling:
    """Return how this model's vectors are made. Raises ModelInvalid for a module that is not known.

    Without sentence-transformers' files a decoder's last token counts, and the mean over an encoder's.
    """
    modules = read_json(path / MODULES_FILE)
    dimensions = _dimensions(path, config)
    if modules is None:
        decodes = any(name.endswith(_GENERATES) for name in config.get("architectures") or ())
        return Pooling((LAST,) if decodes else (MEAN,), dimensions=dimensions)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelInvalid(f"{path / MODULES_FILE}: a list of modules is needed; copy the model again")
    return _of_modules(path, [(_kind(path, module), str(module.get("path", ""))) for module in modules], dimensions)


def _dimensions(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    said = config.get("matryoshka_dimensions") or []
    if not isinstance(said, list) or not all(type(size) is int and size > 0 for size in said):
        told = f"matryoshka_dimensions is {str(said)[:80]}"
        raise ModelInvalid(f"{path / 'config.json'}: {told}; a list of whole numbers of at least 1 is needed")
    return tuple(sorted(said))


def _by_files(path: Path, config: Mapping[str, Any]) -> str:
    if hears(config):
        return TRANSCRIBE
    if is_classifier(config):
        return SCORE if len(read_head(path, config).labels) == 1 else CLASSIFY
    if (path / MODULES_FILE).is_file():
        return EMBED
    names = config.get("architectures") or ()
    makes_text = not names or any(name.endswith(_GENERATES) for name in names)
    is_bare = any(name.endswith(("Model", "ForMaskedLM", "ForPreTraining")) for name in names)
    return EMBED if is_bare and not makes_text else GENERATE


def _check_alone(settings: EngineSettings, config: Mapping[str, Any], task: str) -> None:
    """Refuse by name what vectors are not made with, and sound is not read with."""
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    wrong = {
        f"tensor_parallel_size × pipeline_parallel_size is {ranks}; allowed is 1": ranks > 1,
        f"worker_cls is {settings.worker_cls!r}; allowed is auto": settings.worker_cls != "auto",
        "load_format is sharded_state; allowed are auto, dummy": settings.load_format == "sharded_state",
        "config.json has a quantization_config; allowed are weights of 16 or 32 bits": "quantization_config" in config,
        "compile_sizes is set; allowed is none": bool(settings.compile_sizes),
        "enable_lora is set; allowed are models without adapters": settings.enable_lora,
        f"speculation_method is {settings.speculation_method}; allowed is off": settings.speculation_method != "off",
        f"kv_store_dir is {settings.kv_store_dir!r}; allowed is none, for there are no blocks": settings.kv_store_dir,
    }
    if why := next((words for words, is_so in wrong.items() if is_so), ""):
        raise InvalidSettings(f"{why} where the task is {task}")
    if task == TRANSCRIBE and not hears(config):
        raise InvalidSettings(f"config.json is of {config.get('architectures')}; task transcribe needs {LISTENER}")
    if hears(config) and task != TRANSCRIBE:
        raise InvalidSettings(f"task is {task}; a {LISTENER} has transcribe")
    if task == SCORE and (num_labels := len(read_head(settings.model_path, config).labels)) != 1:
        raise InvalidSettings(f"config.json names {num_labels} labels; allowed is 1 where the task is score: classify")


def _of_modules(path: Path, modules: Sequence[tuple[str, str]], dimensions: tuple[int, ...]) -> Pooling:
    kinds = [kind for kind, _ in modules]
    is_known = kinds[:2] == ["Transformer", "Pooling"] and not {"Transformer", "Pooling"} & set(kinds[2:])
    if not is_known or "Normalize" in kinds[:-1]:
        order = ", ".join(kinds) or "none"
        raise ModelInvalid(
            f"{path / MODULES_FILE}: the modules are {order}; known is Transformer, Pooling, then Dense, then Normalize"
        )
    first, pooling = (dict(modules)[kind] for kind in ("Transformer", "Pooling"))
    folders = [path / folder for kind, folder in modules if kind == "Dense"]
    length = (read_json(path / first / "sentence_bert_config.json") or {}).get("max_seq_length")
    return Pooling(
        modes=_modes(path / pooling / "config.json"),
        dense=tuple(Dense(folder, _activation(folder / "config.json")) for folder in folders),
        normalizes="Normalize" in kinds,
        max_length=length if isinstance(length, int) else 0,
        dimensions=dimensions,
    )


def _kind(path: Path, module: Mapping[str, Any]) -> str:
    kind = str(module.get("type", "")).rpartition(".")[2]
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise ModelInvalid(f"{path / MODULES_FILE}: module {module.get('type')!r} is not known; known are {known}")
    folder = Path(str(module.get("path", "")))
    if folder.is_absolute() or ".." in folder.parts:
        raise ModelInvalid(f"{path / MODULES_FILE}: {str(folder)!r} points out of the model's directory")
    return kind


def _modes(file: Path) -> tuple[str, ...]:
    """Return what is pooled, in sentence-transformers' order. Raises ModelInvalid where nothing is."""
    said = read_json(file) or {}
    named = said.get("pooling_mode")
    chosen = {named} if isinstance(named, str) else set(named) if isinstance(named, list | tuple) else set()
    old = {"mean_tokens": MEAN, "cls_token": CLS, "max_tokens": MAX, "mean_sqrt_len_tokens": MEAN_SQRT}
    old |= {"weightedmean_tokens": WEIGHTED, "lasttoken": LAST}
    chosen |= {mode for name, mode in old.items() if said.get(f"pooling_mode_{name}")}
    if not chosen or not chosen <= set(POOLING_MODES):
        raise ModelInvalid(f"{file}: pooling is {sorted(map(str, chosen))}; known are {', '.join(POOLING_MODES)}")
    if said.get("include_prompt") is False:
        raise ModelInvalid(f"{file}: include_prompt is false; prompts count as any other text here")
    return tuple(mode for mode in POOLING_MODES if mode in chosen)


def _activation(file: Path) -> str:
    return str((read_json(file) or {}).get("activation_function") or "torch.nn.modules.linear.Identity")
