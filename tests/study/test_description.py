"""Objects from plain data. User types are in test_outside.py."""

import json
import sys

import pytest

from emergo.core.errors import InputError
from emergo.models import ChainTransformer, MinimalAttention, Transformer
from emergo.study.description import (
    build_run,
    build_value,
    find_function,
    known_types,
    load_plugins,
)
from emergo.tasks import Groups, MarkovChain, Recall, SingleLocation, Task
from emergo.training import (
    Clamp,
    Config,
    Optimizer,
    Ramp,
    Replace,
    Run,
    Scale,
    Switch,
    WarmupCosine,
)


def negated(value):
    return -value


def loudness(params, output, batch, truth, step):
    return {"loudness": abs(output.value).max()}


LOCATION = Config(SingleLocation(8, 4), Transformer(1, 1, 8), precision="fp32")
REPLACED = Replace("layers.0.mixed", function=negated)
CHAIN = MarkovChain(Groups((1, 2), 2, weights=((1,), (2, 3))))
CONFIGS = [
    LOCATION,
    LOCATION.replace(task__repeat=Switch(0.4, 0.0, at=10), n_test=7, overtrain=0.5),
    LOCATION.replace(optimizer=Optimizer("lion", WarmupCosine(1e-3, 10, 100), clip=1.0, b2=0.9)),
    LOCATION.replace(optimizer=Optimizer("adam", Ramp(0.1, 0.2, 3, 5)), n_train=50, threshold=None),
    LOCATION.replace(
        interventions=(Clamp(0, until=3), Scale("layers.0.scores", factor=0.5, head=0))
    ),
    LOCATION.replace(interventions=(REPLACED.replace(strength=Switch(0.0, 1.0, at=3)),)),
    Config(Recall(4, 16), Transformer(2, 1, 8, mask="causal"), precision="fp32"),
    Config(CHAIN, MinimalAttention(2, scale=1e-3), precision="fp64"),
    Config(MarkovChain(), ChainTransformer(heads=1, width=6), precision="fp32", threshold=0.05),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config.task).__name__)
def test_a_run_as_plain_data_and_back(config):
    run = Run(config, 5)
    back = build_run(json.loads(json.dumps(run.describe())))
    assert back == run
    assert back.identity == run.identity


def test_functions_are_found_by_their_names():
    module = loudness.__module__
    assert find_function(f"{module}:loudness", "probes") is loudness
    assert build_value({"type": f"{module}:negated"}, "a field") is negated
    switch = {"type": "Switch", "before": 1, "after": 2, "at": 3}
    assert build_value([1, [2, switch]], "x") == (1, (2, Switch(1, 2, at=3)))
    # Functions of emergo need no module.
    assert find_function("attention_probe", "probes").__module__.startswith("emergo.tasks")
    missing = (f"{module}:louder", "no_such_module:loudness", "no_such_probe", f"{module}:LOCATION")
    for name in missing:
        with pytest.raises(InputError, match=f"probes: there is no function {name}"):
            find_function(name, "probes")


def test_of_two_types_of_one_name_the_last_is_known():
    first, second = (
        type("Again", (Task,), {"__module__": "lab", "__qualname__": "Again"}) for _ in range(2)
    )
    assert first is not second
    assert known_types(Task)["lab:Again"] is second
    assert "SingleLocation" in known_types(Task)
    assert "Transformer" not in known_types(Task)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("seed"),
        lambda data: data.pop("config"),
        lambda data: data["config"].pop("task"),
        lambda data: data["config"].update(colour="blue"),
        lambda data: data["config"]["task"].update(dim=0),
        lambda data: data.update(seed="five"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_data_is_not_a_run(change):
    data = json.loads(json.dumps(Run(LOCATION, 5).describe()))
    change(data)
    with pytest.raises(InputError):
        build_run(data)


def test_a_plugin_is_imported_once_and_a_broken_one_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "count", 0, raising=False)
    plugin = tmp_path / "counted_plugin.py"
    plugin.write_text("import sys\nsys.count = getattr(sys, 'count', 0) + 1\n")
    for _ in range(2):
        load_plugins([str(plugin)])
    assert vars(sys)["count"] == 1
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / plugin.name
    other.write_text("")
    words = "a module called counted_plugin is there already; give the file another name"
    with pytest.raises(InputError, match=words):
        load_plugins([str(other)])
    monkeypatch.delitem(sys.modules, "counted_plugin")
    broken = tmp_path / "broken_plugin.py"
    broken.write_text("1 / 0")
    with pytest.raises(InputError, match=r"broken_plugin\.py: ZeroDivisionError: division by zero"):
        load_plugins([str(broken)])
    assert "broken_plugin" not in sys.modules
