"""Reads one model's directory as the front serves it: card, tokenizer, chat templates, answers, senses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import TRANSCRIBE
from dormouse_worker.files.json_files import read_object
from dormouse_worker.files.speech_files import SpeechSpec, read_speech
from dormouse_worker.front.answers.detection import families_of
from dormouse_worker.front.answers.own_family import with_own
from dormouse_worker.front.answers.registry import installed_families
from dormouse_worker.front.answers.response_calls import Unsupported
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, ResponseTemplate, read_response_template
from dormouse_worker.front.images.senses import Senses, Spec, read_senses
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.speech.desk import SpeechDesk
from dormouse_worker.front.text.chat import TemplateRefused, check_templates, read_template_sources
from dormouse_worker.front.text.deferred_tokenizer import load_codec
from dormouse_worker.front.text.grammars import Grammars
from dormouse_worker.front.text.model_card import read_model_card
from dormouse_worker.front.text.renderer import Renderer
from dormouse_worker.front.text.special_tokens import special_tokens
from dormouse_worker.front.text.turns import TextWork

_TELLS_TEXT = "is string"  # in templates that take a turn's text and a list of parts alike


def load_model(
    settings: EngineSettings,
    names: tuple[str, ...],
    *,
    work: TextWork,
    now: Callable[[], datetime],
    make_senses: Callable[[Spec, str], Senses] | None = None,
    make_desk_for_sound: Callable[[SpeechSpec], SpeechDesk] | None = None,
) -> Model:
    """Read everything from the model's directory. Raises a WorkerError naming the file and what to do."""
    card = read_model_card(settings)
    path = settings.model_path
    codec = load_codec(path)
    card = replace(card, vocab_size=card.vocab_size or codec.vocab_size)
    config = read_object(path / "tokenizer_config.json")
    named = special_tokens(config, read_object(path / "special_tokens_map.json"))
    try:
        sources = read_template_sources(path, config)
        check_templates(sources)
    except (TemplateRefused, KeyError, TypeError, OSError, ValueError) as error:
        raise ModelInvalid(f"{path}: {error}; mend the chat template") from error
    grammars = Grammars(path / "tokenizer.json", card.eos_token_ids)
    template, own = "\n".join(sources.values()), _own_answers(settings, config)
    families = with_own(installed_families(), own, template)
    chosen = families_of(template, settings, families, own)
    spec = read_senses(path, read_object(path / "config.json"))
    renderer = Renderer(sources, named, now=now, wants_parts=spec is not None and _TELLS_TEXT not in template)
    senses = None if spec is None or make_senses is None else make_senses(spec, named.get("bos_token", ""))
    hears = card.task == TRANSCRIBE
    desk = make_desk_for_sound(read_speech(path)) if make_desk_for_sound is not None and hears else None
    return Model(names, card, codec, renderer, grammars, work, *chosen, families, own, senses, desk)


def _own_answers(settings: EngineSettings, config: Mapping[str, Any]) -> ResponseTemplate | None:
    """Return what the checkpoint says of its answers, None if nothing or if the settings say otherwise.

    Raises ModelInvalid where it says what nobody keeps.
    """
    said = config.get(RESPONSE_TEMPLATE)
    if said is None or not {settings.tool_call_parser, settings.reasoning_parser} & {"auto", RESPONSE_TEMPLATE}:
        return None
    try:
        return read_response_template(said)
    except Unsupported as error:
        advice = "name families by --tool-call-parser and --reasoning-parser, or none"
        raise ModelInvalid(f"{settings.model_path / 'tokenizer_config.json'}: {error}; {advice}") from error
