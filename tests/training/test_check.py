"""Configs that do not fit are rejected before compilation, in one line that names the method."""

import jax.numpy as jnp
import pytest

from emergo.core.contract import Above, Batch, Below, Output, Spec, probe
from emergo.core.errors import InputError
from emergo.core.pytree import Schedule, per_run
from emergo.training import Intervention
from emergo.training import _cost as costs
from emergo.training._check import probe_curves

from .own import BASE, Echo, Heads, clock, largest_score
from .untyped import (
    Config,
    MinimalAttention,
    Model,
    Recall,
    Run,
    SingleLocation,
    Switch,
    Task,
    ToyAttention,
    When,
    check_config,
    train,
)


@pytest.fixture(autouse=True)
def _no_compilation(monkeypatch):
    """Fail if anything is compiled."""

    def compiled(*_):
        pytest.fail("something was compiled")

    monkeypatch.setattr(costs, "_compile", compiled)


class NoSpec(Task):
    pass


class OddSpec(Echo):
    @property
    def spec(self):
        return (4, 3, 3)


class EmptySpec(Echo):
    @property
    def spec(self):
        return Spec(4, 0, 3)


class BrokenSpec(Echo):
    @property
    def spec(self):
        return Spec(self.size, 3, 3)


class NoTruth(Task):
    @property
    def spec(self):
        return Spec(4, 3, 3)


class OddBatch(Echo):
    def batch(self, key, n, truth):
        return tuple(super().batch(key, n, truth))


class LongBatch(Echo):
    def batch(self, key, n, truth):
        batch = super().batch(key, n, truth)
        return batch._replace(inputs=jnp.concatenate([batch.inputs, batch.inputs], 1))


class OddRelevant(Echo):
    def batch(self, key, n, truth):
        return super().batch(key, n, truth)._replace(relevant=jnp.ones(n, bool))


class BrokenBatch(Echo):
    def batch(self, key, n, truth):
        return Batch(jnp.ones((n, 4, 3)) @ jnp.ones((4, 4)), truth)


class Branches(Echo):
    """Branches on a number that is traced when runs share a program."""

    def truth(self, key):
        return super().truth(key) if self.gain > 0 else -super().truth(key)


class MeanLoss(Echo):
    def loss(self, output, batch):
        return super().loss(output, batch).mean()


class WholeLoss(Echo):
    """Integers cannot be differentiated."""

    def loss(self, output, batch):
        return (super().loss(output, batch) > 0).astype(int)


class OddMetrics(Echo):
    def metrics(self, output, batch, truth):
        return {"error": output.value}


class UnknownMetric(Echo):
    learned = Above("acuracy", 0.9)

    def metrics(self, output, batch, truth):
        return {"accuracy": self.loss(output, batch)}


class ManyNumbers(Echo):
    learned = Below("entropy", 0.5)


class NoInit(Model):
    pass


class WholeInit(Heads):
    def init(self, key, spec):
        return {"scale": jnp.ones(3, int)}


class OddAttention(Heads):
    def apply(self, params, inputs, tap=None):
        return Output(inputs[:, -1], attention=inputs[:, :, 0])


class NoNew(Intervention):
    pass


class ArrayOutput(Heads):
    def apply(self, params, inputs, tap=None):
        return inputs[:, -1]


class WideOutput(Heads):
    def apply(self, params, inputs, tap=None):
        return Output(jnp.concatenate([inputs[:, -1], inputs[:, -1]], -1))


class NoValue(Schedule):
    def extremes(self):
        return (0.0, 1.0)


class ManyValues(NoValue):
    def value(self, step, state):
        return jnp.ones(3)


class GrowingState(NoValue):
    def value(self, step, state):
        return 1.0

    def update(self, state, metrics):
        return jnp.ones(3)


class Undeclared(NoValue):
    """Reads a metric that it does not declare."""

    def value(self, step, state):
        return 1.0

    def update(self, state, metrics):
        return metrics["loss"]


def no_dictionary(params, output, batch, truth, step):
    return output.value.mean()


def no_array(params, output, batch, truth, step):
    return {"name": "value"}


def dynamic(params, output, batch, truth, step):
    return {"large": output.value[output.value > 0]}


def twice(params, output, batch, truth, step):
    return {"entropy": jnp.float32(0)}


@probe(reads=["layers.0.attn"])
def unknown_tap(params, output, batch, truth, step):
    return {}


def task(kind, **options):
    return {"task": kind(4, 3, **options) if issubclass(kind, Echo) else kind(), "threshold": None}


CASES = [
    (task(NoSpec), "NoSpec.spec is missing: a subclass must define it"),
    (
        task(OddSpec),
        r"OddSpec.spec must be an em.Spec\(length=…, inputs=…, outputs=…\) of whole numbers",
    ),
    (task(EmptySpec), r"EmptySpec.spec must be .* of at least 1, got Spec\(length=4, inputs=0"),
    (
        task(BrokenSpec),
        "BrokenSpec.spec failed: AttributeError: 'BrokenSpec' object has no attribute 'size'",
    ),
    (task(NoTruth), "NoTruth.truth is missing: a subclass must define it"),
    (
        task(OddBatch),
        r"OddBatch.batch must return an em.Batch\(inputs, target, relevant\), got a tuple",
    ),
    (
        task(LongBatch),
        r"LongBatch.batch must return inputs, shape \[8, 4, 3\], got float32\[8, 8, 3\]",
    ),
    (
        task(OddRelevant),
        r"OddRelevant.batch must return `relevant`, shape \[8, 4\], got bool\[8\]",
    ),
    (task(BrokenBatch), "BrokenBatch.batch failed: TypeError: dot_general requires"),
    (
        task(Branches),
        "Branches.truth failed: TracerBoolConversionError: .*; numbers of a run are traced, "
        "choose with",
    ),
    (
        task(MeanLoss),
        r"MeanLoss.loss must return one real number per sequence, shape \[8\], got float32\[\]",
    ),
    (
        task(WholeLoss),
        r"WholeLoss.loss must return one real number per sequence, got int32\[8\]",
    ),
    (
        task(OddMetrics),
        r"OddMetrics.metrics must return one error per sequence, shape \[8\], got float32\[8, 3\]",
    ),
    (
        {"task": UnknownMetric(4, 3), "threshold": "task"},
        "unknown metric of UnknownMetric.learned 'acuracy'; did you mean accuracy?",
    ),
    (
        {"task": ManyNumbers(4, 3), "threshold": 0.5},
        r"ManyNumbers.learned must return one number, shape \[\], got float32\[1, 2\]",
    ),
    ({"model": NoInit()}, "NoInit.init is missing: a subclass must define it"),
    (
        {"model": WholeInit()},
        r"WholeInit.init must return arrays of real numbers, which have a gradient, got int32\[3\]",
    ),
    (
        {"model": OddAttention()},
        r"OddAttention.apply must return attention, shape \[8, layers, heads, 4\], got "
        r"float32\[8, 4\]",
    ),
    (
        {"interventions": (NoNew("layers.0.scores"),)},
        "NoNew.new is missing: a subclass must define it",
    ),
    ({"model": ArrayOutput()}, r"ArrayOutput.apply must return an em.Output\(value, …\)"),
    (
        {"model": WideOutput()},
        r"WideOutput.apply must return a value, shape \[8, 3\], got float32\[8, 6\]",
    ),
    ({"task__gain": NoValue()}, "NoValue.value is missing: a subclass must define it"),
    ({"task__gain": ManyValues()}, r"ManyValues.value must return one number, shape \[\], got"),
    (
        {"task__gain": GrowingState()},
        "GrowingState.update must keep the shapes and types of its state",
    ),
    ({"task__gain": Undeclared()}, "Undeclared.update failed: KeyError: 'loss'"),
    (
        {"task__noise": When("eror", below=0.5, before=0.1)},
        "unknown metric of When 'eror'; did you mean error",
    ),
    ({"probes": (no_dictionary,)}, "probe no_dictionary failed: TypeError"),
    ({"probes": (no_array,)}, "an evaluation failed: TypeError: .*value"),
    ({"probes": (dynamic,)}, "probe dynamic failed: NonConcreteBooleanIndexError"),
    ({"probes": (twice,)}, "probe twice returns 'entropy', which is measured already"),
    (
        {"probes": (unknown_tap,)},
        "unknown tap of Heads in probe unknown_tap 'layers.0.attn'; did you mean layers.0",
    ),
    ({"precision": "tf32"}, "tf32 products need a GPU; on a CPU choose precision fp32"),
]


@pytest.mark.parametrize(
    ("changes", "message"), CASES, ids=[message.split(" ")[0] for _, message in CASES]
)
@pytest.mark.usefixtures("unchecked")
def test_a_config_that_does_not_fit_is_rejected(changes, message):
    with pytest.raises(InputError, match=message) as error:
        train([Run(BASE.replace(**changes), 0)])
    assert "\n" not in str(error.value)


def test_all_programs_are_checked_before_the_first_is_compiled():
    good = Run(BASE.replace(batch=4), 0)
    bad = Run(BASE.replace(task=NoTruth()), 0)
    with pytest.raises(InputError, match="NoTruth"):
        train([good, bad])


def test_a_threshold_is_checked_in_every_group():
    """Checking a run without a threshold is not enough."""
    without = BASE.replace(task=UnknownMetric(4, 3))
    check_config(without, "cpu")
    with pytest.raises(InputError, match="UnknownMetric"):
        train([Run(without, 0), Run(without.replace(threshold=0.5), 0)])


@pytest.mark.usefixtures("unchecked")
def test_taps_must_be_a_list():
    """A string is a sequence too."""
    with pytest.raises(InputError, match="takes a list of taps"):
        probe(reads="layers.0.scores")


def test_the_curves_of_probes():
    assert probe_curves(BASE) == ()
    assert probe_curves(BASE.replace(probes=(largest_score, clock))) == ("clock", "largest_score")


@pytest.mark.usefixtures("unchecked")
def test_a_model_for_tokens_is_rejected_on_features():
    with pytest.raises(
        InputError, match="MinimalAttention reads integer tokens, but SingleLocation"
    ):
        train([Run(Config(SingleLocation(4, 2), MinimalAttention(), precision="fp32"), 0)])


def test_a_schedule_must_not_change_the_test_set():
    """A subclass inherits an `at_test` that does not know its fields."""

    class Harder(Echo):
        visible: float = per_run(default=1.0)

    task = Harder(4, 3, visible=Switch(1.0, 8.0, at=10))
    words = r"Harder.visible is a schedule, Switch\(.*\), and would change the test set during"
    with pytest.raises(InputError, match=words):
        check_config(BASE.replace(task=task))
    check_config(BASE.replace(task=Echo(4, 3, noise=Switch(0.1, 0.0, at=10))))


def test_tokens_for_a_model_of_features_are_refused():
    recall = BASE.replace(task=Recall(2, 8), model=ToyAttention())
    words = r"ToyAttention reads features, but Recall.batch returns integer tokens"
    with pytest.raises(InputError, match=words):
        check_config(recall)
