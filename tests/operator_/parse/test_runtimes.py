"""What vLLM's engine is not combined with, where the schema was not enforced; the schema says the same."""

from __future__ import annotations

from contextlib import suppress

import pytest

from dormouse_operator.manifests import worker_arguments
from dormouse_operator.manifests.revision import revision_of
from dormouse_operator.parse import SpecError, parse_deployment
from dormouse_worker.foreign.vllm.options import check_vllm_settings
from dormouse_worker.front.flags.settings import parse_settings
from tests.operator_.refused_specs import NOT_WITH_VLLM, WITH_VLLM
from tests.operator_.test_engine_settings import OTHER, settings_of


def deployment(**spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "generation": 3}
    return parse_deployment({"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny"}, **spec}})


def merged(first, second):
    """Return both, and in what both have the second's words beside the first's."""
    both = {
        name: {**first[name], **second[name]} for name in first.keys() & second.keys() if isinstance(first[name], dict)
    }
    return {**first, **second, **both}


def test_its_arguments_are_a_workers_that_starts():
    wanted = deployment(**WITH_VLLM)
    front, engine = parse_settings(worker_arguments(wanted), {})
    assert (front.engine_python, engine.runtime, engine.device) == ("/opt/vllm/bin/python", "vllm", "cpu")


def test_our_own_engine_is_not_named_and_another_one_is_another_revision():
    own = deployment(image="worker:1", engine={"device": "cpu"})
    assert not [word for word in worker_arguments(own) if word.startswith(("--runtime", "--engine-python"))]
    assert revision_of(own, "worker:1") != revision_of(deployment(**WITH_VLLM), WITH_VLLM["image"])


@pytest.mark.parametrize(("spec", "field"), NOT_WITH_VLLM)
def test_what_it_is_not_combined_with_is_refused_by_name(spec, field):
    with pytest.raises(SpecError, match=rf"^spec\.{field} has to be .* where spec\.engine\.runtime is vllm$"):
        deployment(**merged(WITH_VLLM, spec))


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"speculation_model"}))  # only beside its method
def test_whatever_is_not_refused_is_what_its_worker_takes(name):
    with suppress(SpecError):
        check_vllm_settings(settings_of(**{"runtime": "vllm", "device": "cpu", name: OTHER[name]}))


def test_it_needs_an_image_that_has_it():
    with pytest.raises(SpecError, match=r"^spec\.image has to be one with that engine in /opt/vllm"):
        deployment(engine=WITH_VLLM["engine"])


def test_an_order_to_sleep_names_the_level_that_there_is():
    ordered = {"desiredState": "Asleep", "sleepLevel": 3}
    assert deployment(**WITH_VLLM, lifecycle=ordered).lifecycle.sleep_level == 3
