"""Schedules: their values, and that a run stays a function of its config and seed."""

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emergo.core.contract import Batch, Output, Spec
from emergo.core.errors import InputError
from emergo.training._schedules import resolve, schedules_in, start_states

from .helpers import alike, check_going_on
from .own import BASE, Echo, Halving, clock, follows, plain_run, run_of
from .untyped import (
    Clamp,
    Config,
    Model,
    Optimizer,
    Ramp,
    Run,
    SingleLocation,
    Switch,
    Task,
    WarmupCosine,
    When,
    WhenStuck,
    groups_of,
    train,
)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Switch(0.4, 0.1, at=3), {0: 0.4, 2: 0.4, 3: 0.1, 9: 0.1}),
        (Ramp(1.0, 3.0, begin=2, end=6), {0: 1.0, 2: 1.0, 3: 1.5, 6: 3.0, 9: 3.0}),
        (
            WarmupCosine(0.8, warmup=4, end=8, last=0.2),
            {0: 0.2, 3: 0.8, 4: 0.8, 6: 0.5, 8: 0.2, 99: 0.2},
        ),
    ],
)
def test_values(schedule, values):
    for step, value in values.items():
        assert float(schedule.value(step, schedule.start())) == pytest.approx(value, abs=1e-6)
        assert min(schedule.extremes()) - 1e-6 <= value <= max(schedule.extremes()) + 1e-6


def test_a_trigger_stays_fired_and_compares_the_extreme_head():
    above = When("m", above=0.5, before=1.0, after=2.0)
    below = When("m", below=0.5, before=1.0, after=2.0)
    for schedule, quiet, fires in (
        (above, [0.1, 0.4], [0.1, 0.5]),
        (below, [0.6, 0.9], [0.9, 0.5]),
    ):
        state = schedule.update(schedule.start(), {"m": jnp.array(quiet)})
        assert float(schedule.value(0, state)) == 1.0
        state = schedule.update(state, {"m": jnp.array(fires)})
        assert float(schedule.value(0, state)) == 2.0
        assert float(schedule.value(0, schedule.update(state, {"m": jnp.array(quiet)}))) == 2.0


def helped(schedule, numbers):
    """Return whether help is active after each evaluation."""
    state = schedule.start()
    given = []
    for number in numbers:
        state = schedule.update(state, {"loss": jnp.float32(number)})
        given.append(float(schedule.value(0, state)) == schedule.stuck)
    return given


def test_help_is_active_while_a_metric_stands_still():
    """The metric falls from 6 to 1 and stays: stuck after the second window. Then it finds a level,
    and leaves it."""
    schedule = WhenStuck("loss", stuck=0.5, moving=0.1, patience=4)
    falling = [6.0, 3.0, 1.5, 1.0]
    flat = [1.0] * 4
    assert helped(schedule, falling + flat) == [False] * 7 + [True]
    for level, leaves in (
        (1.3, 0.9),
        (1.3, 1.9),
    ):  # the help itself moves the number, which is not what is waited for
        numbers = falling + flat + [level] * 6 + [leaves]
        assert helped(schedule, numbers)[7:] == [True] * 7 + [False]
        # Then a new window starts: no help while it falls, and help when it is flat.
        assert helped(schedule, [*numbers, 0.8, 0.6, 0.4, 0.2, *[0.2] * 4])[-8:] == [False] * 7 + [
            True
        ]


@settings(max_examples=20)
@given(st.lists(st.floats(0.96, 1.04), min_size=40, max_size=60), st.floats(1e-3, 1e3))
def test_noise_within_the_tolerance_changes_nothing(noise, unit):
    schedule = WhenStuck("loss", stuck=0.5)
    assert helped(schedule, [unit * x for x in noise]) == [False] * 11 + [True] * (len(noise) - 11)


def test_a_tree_is_resolved_leaf_by_leaf():
    task = Echo(4, 3, gain=Switch(1.0, 2.0, at=5), noise=When("error", below=0.5, before=0.3))
    assert schedules_in(task) == [task.gain, task.noise]
    now = resolve(task, 7, start_states(task))
    assert (now.length, float(now.gain), float(now.noise)) == (4, 2.0, pytest.approx(0.3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Ramp(0.0, 1.0, begin=5, end=5),
            "Ramp.end must be later than 5, got 5",
        ),
        (
            lambda: WarmupCosine(1.0, warmup=5, end=5),
            "WarmupCosine.end must be later than 5, got 5",
        ),
        (lambda: When("loss", before=0.1), "When needs either above or below"),
        (lambda: When("loss", above=0.1, below=0.1), "When needs either above or below"),
        (
            lambda: SingleLocation(8, 2, repeat=Switch(0.4, 1.5, at=9)),
            "SingleLocation.repeat: every value of Switch.* to 1, got 1.5",
        ),
        (
            lambda: BASE.replace(n_train=16, task__gain=Switch(1.0, 2.0, at=3)),
            "no effect on a finite data set",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_training_equals_a_plain_loop():
    """A switched gain, ramped noise and a learning rate with warm-up, each by hand."""
    task = Echo(4, 3, gain=Switch(1.0, 2.0, at=7), noise=Ramp(0.0, 0.5, begin=4, end=12))
    run = run_of(
        task=task,
        optimizer=Optimizer("sgd", learning_rate=WarmupCosine(0.4, warmup=6, end=18, last=0.1)),
    )
    (result,) = train([run])

    def task_at(step):
        return Echo(
            4, 3, gain=jnp.where(step < 7, 1.0, 2.0), noise=0.5 * jnp.clip((step - 4) / 8, 0, 1)
        )

    def rate(step):
        falling = 0.1 + 0.3 * 0.5 * (1 + jnp.cos(math.pi * jnp.clip((step - 6) / 12, 0, 1)))
        return jnp.where(step < 6, 0.4 * (step + 1) / 6, falling)

    _, tested, trained = plain_run(run, optax.sgd(rate), task_at=task_at)
    follows(result, tested, trained)
    # The losses differ without the schedules.
    _, constant, _ = plain_run(run, optax.sgd(0.4), task_at=lambda step: Echo(4, 3))
    assert abs(constant[-1] / tested[-1] - 1) > 0.1


def scheduled(seed, steps, at, below):
    """Return a run with the same structure as the others, and other numbers."""
    task = Echo(
        4, 3, gain=Switch(1.0, 1.1, at=at), noise=When("error", below=below, before=0.5, after=0.0)
    )
    rate = WarmupCosine(0.1, warmup=at, end=60, last=0.01)
    return run_of(
        seed,
        task=task,
        optimizer=Optimizer("adam", learning_rate=rate),
        steps=steps,
        probes=(clock,),
    )


# Four runs in two slots. The last ones start when their neighbours are between evaluations.
RUNS = [
    scheduled(0, 18, 7, 0.6),
    scheduled(1, 47, 11, 0.5),
    scheduled(2, 31, 9, 0.4),
    scheduled(3, 40, 5, 0.5),
]


@pytest.fixture(scope="module")
def together():
    return train(RUNS, n_parallel=2)


def test_a_run_is_the_same_alone_and_in_a_stack(together):
    for beside in together:
        (alone,) = train([beside.run])
        alike(beside, alone, 1e-4)
    # The triggers matter: a run whose trigger never fires takes another path.
    never = RUNS[1].config.replace(task__noise=When("error", below=0.0, before=0.5, after=0.0))
    (unfired,) = train([Run(never, 1)])
    assert (
        np.abs(unfired.curves["train_loss"][-3:] - together[1].curves["train_loss"][-3:]).min()
        > 0.01
    )


def test_resume_is_exact_with_the_state_of_schedules(together, tmp_path):
    check_going_on(together, tmp_path, n_parallel=2)


class Slide(Task):
    """The loss is the one parameter of the model, so its gradient is always 1."""

    eval_every = 5

    @property
    def spec(self):
        return Spec(length=1, inputs=1, outputs=1)

    def truth(self, key):
        return ()

    def batch(self, key, n, truth):
        return Batch(jnp.ones((n, 1, 1)), jnp.ones((n, 1)))

    def loss(self, output, batch):
        return output.value[:, 0]


class Weight(Model):
    def init(self, key, spec):
        return jnp.float32(10.0)

    def apply(self, params, inputs, tap=None):
        return Output(params * inputs[:, 0])


def slide(steps, schedule, seed=0):
    optimizer = Optimizer("sgd", learning_rate=schedule)
    return Run(
        Config(Slide(), Weight(), optimizer, 2, "fp32", steps, None, n_test=2, probes=(clock,)),
        seed,
    )


def test_a_trigger_fires_only_at_evaluations_of_its_run():
    """The stack is evaluated at step 12 for the first run, when the clock of the second run is past
    11.5. Its own evaluations are at 10 and 15, so it moves from 15 on, by 1 per step."""
    trigger = When("clock", above=11.5, before=0.0, after=1.0)
    runs = [slide(12, trigger), slide(30, trigger, 1), slide(25, trigger, 2)]
    for result, last in zip(train(runs, n_parallel=2), (12, 30, 25), strict=True):
        steps = [*range(0, last, 5), last]
        np.testing.assert_array_equal(result.curves["step"], steps)
        np.testing.assert_allclose(
            result.curves["loss"], [10 - max(0, step - 15) for step in steps]
        )


def test_a_schedule_of_the_user_counts_the_evaluations_of_its_run():
    """The first is at step 0, so the steps before the second evaluation have half of the first
    number."""
    runs = [slide(12, Halving(1.0)), slide(20, Halving(1.0), 1), slide(20, Halving(1.0), 2)]
    for result in train(runs, n_parallel=2):
        moved = 10 - result.curves["loss"]
        expected = np.cumsum(
            [0.0, *np.diff(result.curves["step"]) * 0.5 ** np.arange(1, len(moved))]
        )
        np.testing.assert_allclose(moved, expected, rtol=1e-6)


def test_the_numbers_of_schedules_do_not_change_the_program():
    assert len(groups_of(RUNS)) == 1
    assert len(groups_of([RUNS[0], run_of(0, steps=18, probes=(clock,))])) == 2


def test_the_value_of_every_schedule_is_a_curve():
    """Schedules of single heads react to the column of that head."""
    config = BASE.replace(
        task__noise=When("attention_0_1", above=0.0, before=0.5, after=0.1),
        optimizer__learning_rate=Ramp(0.1, 0.0, begin=0, end=20),
        interventions=(Clamp(0, strength=Switch(0.0, 0.5, at=10)),),
    )
    [result] = train([Run(config, 0)])
    step = result.curves["step"]
    np.testing.assert_allclose(result.curves["noise_now"], np.where(step == 0, 0.5, 0.1))
    np.testing.assert_allclose(result.curves["learning_rate_now"], 0.1 * (1 - step / 20), 1e-6)
    np.testing.assert_array_equal(result.curves["strength_now"], np.where(step < 10, 0, 0.5))
    twice = BASE.replace(
        interventions=tuple(Clamp(0, strength=Switch(0.0, s, at=10)) for s in (0.5, 1.0))
    )
    [result] = train([Run(twice, 0)])
    assert {n for n in result.curves if n.endswith("_now")} == {
        "interventions_0_strength_now",
        "interventions_1_strength_now",
    }
