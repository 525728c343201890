"""What config.json says of a classifier's head."""

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.head_files import HeadFiles, read_head
from dormouse_worker.files.task_files import task_of


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({"id2label": {"1": "good", "0": "bad"}}, ("bad", "good"), "softmax"),
        ({"id2label": {"0": "fits"}}, ("fits",), "sigmoid"),
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "none"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            ("LABEL_0",),
            "none",
        ),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            ("LABEL_0", "LABEL_1"),
            "sigmoid",
        ),
    ],
)
def test_labels_and_activation_are_those_of_the_files(tmp_path, config, labels, activation):
    assert read_head(tmp_path, config) == HeadFiles(labels, activation)


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {}},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"a": "b"}},
        {"id2label": [1, 2]},
        {"num_labels": 0},
        {"num_labels": 1 << 40},
        {"id2label": {str(n): "x" for n in range(4097)}},
        {"id2label": {"0": "x" * (1 << 20)}},
        {"id2label": {"0": "\ud800"}},
        {"sbert_ce_default_activation_function": "os.system"},
        {"sbert_ce_default_activation_function": ["os.system"]},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
    ],
)
def test_what_is_not_known_is_refused_before_anything_is_made_of_it(tmp_path, config):
    with pytest.raises(ModelInvalid, match=r"config.json"):
        read_head(tmp_path, config)


@pytest.mark.parametrize(
    ("config", "task"),
    [({"id2label": {"0": "fits"}}, "score"), ({}, "classify"), ({"id2label": {"0": "a", "1": "b"}}, "classify")],
)
def test_a_classifier_with_one_label_scores(tmp_path, config, task):
    """Whatever else the directory has: sentence-transformers' cross-encoders have modules, too."""
    (tmp_path / "modules.json").write_text("[]")
    config = {"architectures": ["XLMRobertaForSequenceClassification"], **config}
    assert task_of(EngineSettings(model=str(tmp_path)), config) == task
    assert task_of(EngineSettings(model=str(tmp_path), task="classify"), config) == "classify"
