"""Warm starts: parameters from elsewhere, and training that continues."""

import dataclasses

import jax
import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.training._start import arrays_of

from .own import BASE, Echo, run_of
from .untyped import (
    Optimizer,
    Ramp,
    Run,
    Switch,
    WhenStuck,
    as_start,
    resume,
    save_parameters,
    train,
)

# The rate is scheduled, and the noise reacts to evaluations, so that all states matter.
MOVING = BASE.replace(
    optimizer=Optimizer("adam", Ramp(0.05, 0.01, begin=0, end=40)),
    task__noise=WhenStuck("error", stuck=0.1, patience=2),
    steps=40,
)


def last(config, seed=0):
    """Return the last state of a run and its curves."""
    kept = []
    [result] = train([Run(config, seed)], keep=[], snapshot=kept.append)
    return kept[-1], result.curves


def assert_same(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def whole():
    return last(MOVING)


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(whole):
    half, _ = last(MOVING.replace(steps=20))
    resumed, curves = last(MOVING.replace(start=resume(half)))
    assert resumed.step == 40
    assert_same(resumed.params, whole[0].params)
    assert_same(resumed.state, whole[0].state)
    rows = whole[1]["step"] >= 20
    for name in set(curves) - {"train_loss"}:  # the mean since the evaluation before
        np.testing.assert_array_equal(curves[name], whole[1][name][rows])
    np.testing.assert_array_equal(curves["train_loss"][1:], whole[1]["train_loss"][rows][1:])


def test_a_warm_start_begins_at_step_0_with_a_new_optimizer(whole):
    other = BASE.replace(task=Echo(4, 3, noise=0.2), start=as_start(whole[0]), steps=5)
    _, curves = last(other)
    assert curves["step"][0] == 0
    _, cold = last(other.replace(start=None))
    assert curves["loss"][0] < 0.2 * cold["loss"][0]


def test_the_content_identifies_a_start_and_not_its_place(whole, tmp_path):
    for name in ("one", "two"):
        save_parameters(tmp_path / f"{name}.safetensors", whole[0])
    starts = [as_start(whole[0]), *map(as_start, tmp_path.iterdir())]
    assert len(set(starts)) == 1
    other = whole[0]._replace(params=jax.tree.map(lambda x: x + 1, whole[0].params))
    identities = {
        run_of(start=start).identity
        for start in (None, starts[0], as_start(other), resume(whole[0]))
    }
    assert len(identities) == 4
    assert "state/step" not in arrays_of(starts[0])


def test_each_seed_starts_from_its_own_run(whole):
    half = {seed: last(BASE.replace(steps=5), seed)[0] for seed in (0, 1)}
    config = BASE.replace(start=as_start(half), steps=5)
    alone = BASE.replace(start=as_start(half[1]), steps=5)
    # Another seed that joins leaves the identity of a run as it is.
    assert Run(config, 1).identity == Run(alone, 1).identity
    assert_same(last(config, 1)[0].params, last(alone, 1)[0].params)
    with pytest.raises(InputError, match="no parameters for seed 2, only for seeds 0, 1"):
        Run(config, 2).identity  # noqa: B018


def test_unsuitable_starts_are_refused_before_compilation(whole, tmp_path):
    start = as_start(whole[0])
    with pytest.raises(InputError, match=r"has weights of shape \[2, 3, 3\], and this run needs"):
        train([run_of(task=Echo(4, 5), start=start)])
    with pytest.raises(InputError, match=r"the optimizer of start.* has no optimizer.*trace"):
        train([run_of(optimizer=Optimizer("sgd", 0.1, momentum=0.9), start=resume(whole[0]))])
    with pytest.raises(
        InputError, match=r"the optimizer of start has .*count, which sgd does not have"
    ):
        train([run_of(optimizer=Optimizer("sgd", 0.1), start=resume(whole[0]))])
    with pytest.raises(InputError, match="continues after step 40, and this run ends at step 40"):
        train([Run(MOVING.replace(start=resume(whole[0])), 0)])
    with pytest.raises(InputError, match="there is no state of the optimizer"):
        resume(whole[0]._replace(state={}))
    with pytest.raises(InputError, match="start must be a trained model"):
        as_start(3)
    with pytest.raises(InputError, match="are not known in this process"):
        train([run_of(start=dataclasses.replace(start, digest="0" * 32))])
    (tmp_path / "bad").write_text("x")
    with pytest.raises(InputError, match="bad: cannot be read as parameters"):
        as_start(tmp_path / "bad")


def test_a_new_schedule_starts_fresh_in_a_resumed_run():
    half, _ = last(BASE.replace(steps=10))
    config = BASE.replace(task__noise=Switch(0.0, 0.1, at=15), start=resume(half), steps=20)
    _, curves = last(config)
    np.testing.assert_array_equal(curves["noise_now"], np.float32(0.1) * (curves["step"] >= 15))
