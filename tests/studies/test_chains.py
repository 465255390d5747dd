"""Studies of Markov chains: what a file may say of them, and what a table says of their runs."""

import copy
import tomllib

import numpy as np
import pytest

from emergo._errors import InputError
from emergo.engine import Config, History, Optimizer, Run
from emergo.models import ChainTransformer, MinimalAttention
from emergo.studies import Study, StudyFolder, estimate, run_study, study_status
from emergo.studies import _work as work
from emergo.studies._toml import toml_text
from emergo.tasks import Groups, MarkovChain

DATA = {
    "seeds": 2,
    "base": {
        "batch": 8,
        "samples": 16,
        "task": {
            "kind": "markov_chain",
            "vocabulary": 5,
            "generated": 4,
            "groups": {"spans": [1, 2], "weights": [[1], [2, 3]]},
        },
        "model": {"heads": 2},
        "optimizer": {"method": "adamw", "clip": 1.0},
    },
    "stop": {"steps": 20, "threshold": 0.2},
    "grid": {"importance": [2.0, 1.5], "generated": [4, 6], "scale": [1e-3, 1e-6]},
}


def changed(**changes):
    """The study above with other values at paths such as `base__task__kind`; None takes one out."""
    data = copy.deepcopy(DATA)
    for path, value in changes.items():
        *tables, name = path.split("__")
        place = data
        for table in tables:
            place = place.setdefault(table, {})
        place.pop(name, None)
        if value is not None:
            place[name] = value
    return data


def test_a_file_means_the_runs_that_python_would_make():
    groups = [Groups((1, 2), importance, weights=((1,), (2, 3))) for importance in (2.0, 1.5)]
    tasks = [MarkovChain(group, 5, generated=generated) for group in groups for generated in (4, 6)]
    models = [(task, MinimalAttention(task.length - 1, 5, 2, scale=scale)) for task in tasks for scale in (1e-3, 1e-6)]
    optimizer = Optimizer("adamw", clip=1.0)
    configs = [Config(task, model, optimizer, 8, "fp32", 20, 0.2, samples=16) for task, model in models]
    expected = {Run(config, seed).identity for config in configs for seed in (0, 1)}
    study = Study.of(DATA)
    assert {run.identity for run in study.runs} == expected
    assert Study.of(study.data()) == study
    assert Study.of(tomllib.loads(toml_text(study.data()))) == study
    assert Study.of(study.grown({"generated": [3]}).data()).count == 24
    task, model = study.runs[0].config.task, study.runs[0].config.model
    assert isinstance(task, MarkovChain)
    assert isinstance(model, MinimalAttention)
    assert study.values_of(study.runs[0]) == [task.groups.importance, task.generated, model.scale]


def test_the_full_model_and_an_estimate():
    study = Study.of(
        changed(base__model={"kind": "chain_transformer", "heads": 2, "width": 8, "hidden": 8}, grid={"hidden": [4, 8]})
    )
    assert {run.config.model for run in study.runs} == {ChainTransformer(6, 5, 2, 8, hidden) for hidden in (4, 8)}
    assert Study.of(study.data()) == study
    small, large = estimate(study), estimate(Study.of(changed(base__batch=800, base__samples=None)))
    assert sum(group.runs for group in small.groups) == 4
    assert 0 < small.bytes < large.bytes
    assert "vocabulary 5, layers 1, heads 2, width 8" in small.groups[0].what


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base__task__kind": "markov"}, "unknown base.task.kind 'markov'; did you mean markov_chain?"),
        ({"base__task__length": 8}, "[base.task] has no key 'length'; known: groups, vocabulary, temperature, generated"),
        ({"base__task__importance": 2}, "[base.task] has no key 'importance'; did you mean base.task.groups.importance?"),
        ({"base__task__groups": 2}, "base.task.groups must be a table, got 2"),
        ({"base__task__groups__span": [1]}, "[base.task.groups] has no key 'span'; did you mean spans?"),
        ({"base__task__groups__spans": [1, 0]}, "[base.task.groups] spans and stride must be whole numbers of at least 1"),
        ({"base__model__kind": "minimal"}, "unknown base.model.kind 'minimal'; did you mean minimal_attention?"),
        ({"base__model__kind": "transformer"}, "minimal_attention and chain_transformer learn a markov_chain"),
        ({"base__task": {"length": 8, "dim": 4}, "base__model__kind": "minimal_attention"}, "transformer all other tasks"),
        ({"base__model__length": 6}, "[base.model] length follows from the task; leave it out"),
        ({"base__model__width": 6}, "[base.model] has no key 'width'; known: heads, layers, start, scale, context"),
        ({"base__precision": "bf16"}, "a MarkovChain is trained in precision fp32 or fp64, got 'bf16'"),
        ({"grid__dim": [4]}, "[base.task] has no axis 'dim'; known: importance"),
        ({"grid__hidden": [4]}, "[base.model] has no axis 'hidden'; known: heads, layers, start, scale, context"),
        ({"grid__importance": [0.5]}, "importance must be a finite number of at least 1, got 0.5"),
        ({"stop__threshold": 0, "law": {"x": ["importance"]}}, "give a threshold that ends them"),
        ({"stop__threshold": 0, "tune": {"learning_rate": [0.1, 0.2]}}, "give a threshold that ends them"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_is_named_with_what_would_be_right(changes, words):
    with pytest.raises(InputError) as caught:
        Study.of(changed(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_axis_that_the_config_lacks_is_named():
    with pytest.raises(InputError, match=r"\[base.task\] has no axis 'dim'"):
        Study(Study.of(DATA).base, grid={"dim": [4]})


def made_up(runs, *, on_end, **_):
    """Stands for the engine: the KL of seed 0 falls to 0.1, that of seed 1 stays at 1."""
    for run in runs:
        curves = {
            "step": np.array([0, 10, 20]),
            "loss": np.ones(3),
            "excess": np.array([1.0, 1.0, 0.1 if run.seed == 0 else 1.0]),
        }
        on_end(History(run, "exhausted", None, curves, "cpu"))


def test_plateaus_are_the_time_to_the_threshold_of_the_kl(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "train", made_up)
    table = run_study(Study.of(changed(grid=None)), tmp_path).set_index("seed")
    assert list(table["state"]) == ["reached", "censored"]
    assert table["plateau"].between(10, 20, inclusive="neither").tolist() == [True, False]
    assert table["plateau"].iloc[1] == 20
    assert list(table["censored"]) == [False, True]


def test_without_a_threshold_there_are_no_plateaus(tmp_path, monkeypatch):
    """Nor lower bounds: nothing was waited for."""
    monkeypatch.setattr(work, "train", made_up)
    for _ in range(2):  # trained, and then read from the index
        table = run_study(Study.of(changed(grid=None, stop__threshold=0)), tmp_path)
        assert list(table["state"]) == ["trained", "trained"]
        assert table[["plateau", "plateau_low", "plateau_high"]].isna().all(axis=None)
        assert not table["censored"].any()
        assert list(table["steps"]) == [20, 20]
    status = study_status(StudyFolder(tmp_path))
    assert (status.trained, status.reached, status.censored, status.finished) == (2, 0, 0, 2)
    assert status.complete
