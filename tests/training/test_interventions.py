"""Interventions, compared with models that contain the same change."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo.core.contract import Batch, Tap
from emergo.core.errors import InputError
from emergo.training._check import check_config

from .helpers import alike, check_going_on
from .own import BASE, Heads, follows, plain_run, run_of
from .untyped import (
    Clamp,
    Freeze,
    Intervention,
    Optimizer,
    Ramp,
    Replace,
    Scale,
    Trained,
    When,
    groups_of,
    train,
)


def negated(value):
    return -value


class Shift(Intervention):
    """A user's intervention."""

    def new(self, value):
        return value + 0.5


class Sharpened(Intervention):
    """A user's intervention that reads an earlier tap."""

    reads = ("layers.0.scores",)

    def new_from(self, value, tap):
        return jax.nn.softmax(2 * tap.taken[SCORES], -1)


def uniform(x):
    return jnp.full_like(x, 1 / x.shape[-1])


def heads(first, second):
    return jnp.stack([first, second], 1)


def by_taps(**changes):
    """Change the values at several taps."""
    taps = {"pattern": PATTERN, "scores": SCORES, "mixed": MIXED, "value": "value"}
    named = {taps[name]: change for name, change in changes.items()}
    return lambda step: lambda tap, value: named[tap](value, step) if tap in named else value


class Deeper(Sharpened):
    reads = ("layers.1.scores",)

    def new_from(self, value, tap):
        return value


class KeptScores:
    """A tap that remembers the scores for the pattern that follows."""

    def __call__(self, tap, value):
        if tap == SCORES:
            self.scores = value
        if tap != PATTERN:
            return value
        last = jnp.zeros_like(value[:, 0]).at[..., -1].set(1)
        return heads(last, jax.nn.softmax(2 * self.scores[:, 1], -1))


PATTERN = "layers.0.pattern"
SCORES = "layers.0.scores"
MIXED = "layers.0.mixed"
CASES = {
    "from and until a step": (
        (Clamp(0, first=4), Scale("layers.*.scores", factor=3.0), Shift("value", until=5)),
        by_taps(
            pattern=lambda x, step: jnp.where(step >= 4, uniform(x), x),
            scores=lambda x, step: 3 * x,
            value=lambda x, step: jnp.where(step < 5, x + 0.5, x),
        ),
    ),
    "a head": (
        (Clamp(PATTERN, head=1), Scale(MIXED, head=0, factor=0.2)),
        by_taps(
            pattern=lambda x, step: heads(x[:, 0], uniform(x[:, 1])),
            mixed=lambda x, step: jnp.stack([0.2 * x[..., 0, :], x[..., 1, :]], -2),
        ),
    ),
    "freeze and replace": (
        (Freeze(PATTERN), Replace(MIXED, function=negated)),
        by_taps(pattern=lambda x, step: jax.lax.stop_gradient(x), mixed=lambda x, step: -x),
    ),
    "a number and a schedule of strength": (
        (Clamp(PATTERN, until=7, to=0.1), Clamp(SCORES, strength=Ramp(0.0, 1.0, begin=2, end=10))),
        by_taps(
            pattern=lambda x, step: jnp.where(step < 7, 0.1, x),
            scores=lambda x, step: x + jnp.clip((step - 2) / 8, 0, 1) * (uniform(x) - x),
        ),
    ),
    "what the batch calls relevant, and a tap before": (  # the task's relevant position is the last
        (Clamp(PATTERN, head=0, to="relevant"), Sharpened(PATTERN, head=1)),
        lambda step: KeptScores(),
    ),
    "one after another": (
        (Scale(SCORES, factor=2.0), Shift(SCORES, head=0)),
        by_taps(scores=lambda x, step: heads(2 * x[:, 0] + 0.5, 2 * x[:, 1])),
    ),
}


@pytest.fixture(scope="module")
def unchanged():
    """The training losses of the run without interventions."""
    return plain_run(run_of(steps=12), optax.adam(0.05))[2]


@pytest.mark.parametrize("name", CASES)
def test_training_equals_a_model_that_contains_the_change(name, unchanged):
    interventions, by_hand = CASES[name]
    run = run_of(interventions=interventions, steps=12)
    (result,) = train([run])
    _, tested, trained = plain_run(
        run, optax.adam(0.05), lambda p, x, step: Heads().apply(p, x, by_hand(step))
    )
    follows(result, tested, trained)
    # And the change matters: without it the losses are others.
    assert np.abs(unchanged[-3:] / trained[-3:] - 1).max() > 1e-3


def test_nothing_before_a_frozen_tap_is_trained():
    """The scores stay exactly as they were, and the later maps move."""
    kept = {}
    run = run_of(interventions=(Freeze(PATTERN, first=5),), optimizer=Optimizer("sgd", 0.1))
    train([run], keep=[0, 5, 10], snapshot=lambda now: kept.update({now.step: now.params}))
    assert (kept[0]["scores"] != kept[5]["scores"]).all()
    np.testing.assert_array_equal(kept[5]["scores"], kept[20]["scores"])
    assert (kept[5]["weights"] != kept[20]["weights"]).any()


def test_steps_and_strengths_differ_within_a_program(tmp_path):
    """Includes a trigger. Alone, in a stack, and after an interrupt."""

    def clamped(seed, until, below):
        strength = When("error", below=below, before=1.0, after=0.0)
        return run_of(
            seed, interventions=(Clamp(PATTERN, until=until, strength=strength),), steps=30
        )

    runs = [clamped(0, 11, 0.0), clamped(1, 99, 0.9), clamped(2, 99, 0.0)]
    assert len(groups_of(runs)) == 1
    results = train(runs, n_parallel=2)
    for result in results:
        alike(result, train([result.run])[0], 1e-4)
    # Uniform attention at the end where nothing has ended the clamp, and not where its trigger has.
    entropies = [result.curves["entropy"][-1] for result in results]
    np.testing.assert_allclose(entropies[2], np.log(4), rtol=1e-5)
    assert all((entropy < np.log(4) - 1e-3).any() for entropy in entropies[:2])
    check_going_on(results, tmp_path, 3, n_parallel=2)


def test_a_tap_outside_of_training():
    """An intervention is active then. It keeps the shape and leaves other taps alone."""
    x = jax.random.normal(jax.random.key(0), (2, 2, 1, 4))
    np.testing.assert_array_equal(Scale(SCORES, factor=2.0).change(SCORES, x, Tap()), 2 * x)
    np.testing.assert_array_equal(Scale(SCORES, factor=2.0).change(PATTERN, x, Tap()), x)
    tap = Tap(step=3, changes=(Scale(SCORES, factor=2.0, first=4),), reads=["*.scores"])
    np.testing.assert_array_equal(tap(SCORES, x), x)
    np.testing.assert_array_equal(tap.taken[SCORES], x)


def test_patterns_of_clamp():
    pattern = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 1, 4, 4)), -1)
    relevant = jnp.array([[False, True, False, False], [True, False, True, False]])
    previous = Clamp(PATTERN, to="previous").change(PATTERN, pattern, Tap())
    np.testing.assert_array_equal(
        jnp.argmax(previous, -1), np.broadcast_to([0, 0, 1, 2], (2, 1, 4))
    )
    np.testing.assert_array_equal(previous.sum(-1), np.ones((2, 1, 4)))
    batch = Batch(jnp.zeros((2, 4), int), None, relevant)
    answer = Clamp(PATTERN, to="relevant").change(PATTERN, pattern, Tap(batch=batch))
    np.testing.assert_array_equal(answer[:, 0, -1], [[0, 1, 0, 0], [0.5, 0, 0.5, 0]])
    np.testing.assert_array_equal(answer[:, :, :-1], pattern[:, :, :-1])
    for shown in (None, batch._replace(relevant=relevant[:, :3])):
        with pytest.raises(InputError, match="a batch that marks its relevant positions"):
            Clamp(PATTERN, to="relevant").change(PATTERN, pattern, Tap(batch=shown))


def test_kept_parameters_are_run_with_the_batch():
    run = run_of(interventions=(Clamp(PATTERN, to="relevant"),))
    params = run.config.model.init(jax.random.key(0), run.config.task.spec)
    trained = Trained(run, 0, params)
    attention = trained.forward(trained.batch(3)).attention
    np.testing.assert_array_equal(attention[..., -1], np.ones(attention.shape[:-1]))
    with pytest.raises(InputError, match="and a batch that marks its relevant positions"):
        trained.forward(trained.batch(3).inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Clamp(PATTERN, strength=Ramp(0.0, 2.0, begin=0, end=9)),
            "Clamp.strength: every value of Ramp",
        ),
        (
            lambda: Clamp(PATTERN, first=9, until=9),
            "Clamp.until must be later than first, got 9 and 9",
        ),
        (lambda: Clamp(1.5), "Clamp.tap must be"),
        (
            lambda: Clamp(PATTERN, to="unifrom"),
            "Clamp.to must be a number or 'uniform' or 'previous' or 'relevant', got 'unifrom'",
        ),
        (
            lambda: BASE.replace(interventions=Clamp(0)),
            "Config.interventions must be a tuple",
        ),
        (
            lambda: BASE.replace(interventions=("clamp",)),
            "Config.interventions must be a tuple",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("intervention", "message"),
    [
        (
            Clamp("layers.1.pattern"),
            r"unknown tap of Heads in Clamp.tap 'layers.1.pattern'",
        ),
        (Clamp(PATTERN, head=2), "Clamp.head is 2, but layers.0.pattern has 2 heads"),
        (Clamp("value", head=0), "Clamp.head is 0, but value has no heads"),
        (Replace(PATTERN), "Replace.function must be a function, got None"),
        (
            Clamp(PATTERN, to="previous"),
            r"Clamp.to 'previous' needs attention to every position",
        ),
        (
            Deeper(PATTERN),
            r"unknown tap of Heads in Deeper.reads 'layers.1.scores'",
        ),
        (
            Replace(PATTERN, function=jnp.sum),
            r"Replace.new must keep the shape of layers.0.pattern, which is \(8, 2, 1, 4\), got "
            r"\(\)",
        ),
    ],
)
def test_an_intervention_that_does_not_fit_the_model_is_rejected(intervention, message):
    with pytest.raises(InputError, match=message):
        check_config(BASE.replace(interventions=(intervention,)), "cpu")
