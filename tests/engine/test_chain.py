"""Training on the Markov chain: the same runs alone, batched and resumed; equal heads stay equal; finite and fresh data."""

import dataclasses
import functools
import json

import jax
import numpy as np
import optax
import pandas as pd
import pytest

from emergo._errors import InputError
from emergo._random import fold_in, raw
from emergo.engine import Config, Optimizer, Run, train
from emergo.engine._chain import predictions
from emergo.engine._cost import next_evaluation, run_bytes, step_operations
from emergo.engine._shape import Shape, draw, family, start, training_loss
from emergo.models import ChainTransformer, MinimalAttention, Transformer
from emergo.studies import Records, Result, record_tables, run_from_json
from emergo.studies._result import run_json
from emergo.tasks import Groups, MarkovChain, SingleLocation, Supply

from .laws import check_going_on, check_records

TASK = MarkovChain(Groups((1, 1), importance=2.0), vocabulary=5, generated=4)
LENGTH = TASK.length - 1
ADAMW = Optimizer("adamw", 0.05, clip=1.0)
MINIMAL = MinimalAttention(LENGTH, 5, heads=2, scale=1e-3)
FULL = ChainTransformer(LENGTH, 5, heads=2, width=8, hidden=8)
BASE = Config(TASK, MINIMAL, ADAMW, batch=32, precision="fp32", steps=20, threshold=0.0, tests=64, samples=64)

IDENTITY = "67719c21fb2cfde1"
"""Of the first run below, as it has ever been."""


def with_importance(m):
    return dataclasses.replace(TASK, groups=dataclasses.replace(TASK.groups, importance=m))


RUNS = [
    Run(BASE, 0),
    Run(dataclasses.replace(BASE, model=dataclasses.replace(MINIMAL, scale=0.0)), 1),
    Run(dataclasses.replace(BASE, model=dataclasses.replace(MINIMAL, start="xavier")), 2),
    Run(dataclasses.replace(BASE, task=with_importance(1.3)), 3),
]
FULL_RUNS = [Run(dataclasses.replace(BASE, model=FULL, samples=None, optimizer=Optimizer("sgd", 0.1, 0.9)), s) for s in (0, 1)]


@pytest.fixture(scope="module")
def together():
    return train(RUNS)


@functools.partial(jax.jit, static_argnums=0)
def loss_of(shape, parameters, data, slot):
    return training_loss(shape, False, parameters, data, slot)


def test_importance_scale_and_start_share_a_program():
    assert len({family(run.config) for run in RUNS}) == 1
    assert family(FULL_RUNS[0].config) != family(RUNS[0].config)


def test_a_run_is_the_same_alone_and_among_others(together):
    beside = together[3]
    (alone,) = train([beside.run])
    for name, values in beside.curves.items():
        # Two programs may add in another order; twenty steps of AdamW keep the difference near rounding.
        np.testing.assert_allclose(values, alone.curves[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_an_interrupted_call_goes_on_where_it_was(together, tmp_path):
    check_going_on(together, 40, tmp_path)


def test_what_is_seen(together):
    for history in together:
        seen = history.curves
        assert history.state == "exhausted"
        assert seen["step"].tolist() == [0, 5, 10, 15, 20]
        assert seen["divergences"].shape == (5, 2)
        assert seen["lags"].shape == (5, 1, 2, 2)
        np.testing.assert_array_equal(seen["excess"], seen["divergences"][:, -1])
        assert (seen["lags"].sum(-1) <= 1 + 1e-5).all()
        # The loss is a sample of teacher's entropy + KL: 64 x 4 tokens of a few nats each.
        np.testing.assert_allclose(seen["loss"] - seen["teacher_loss"], seen["excess"], atol=0.35)
    small = together[0].curves
    assert small["loss"][0] == pytest.approx(np.log(5), rel=1e-5)  # values are 0: the prediction is uniform
    assert small["excess"][-1] < 0.8 * small["excess"][0]


def test_equal_heads_stay_equal_bit_for_bit(together):
    lags = together[1].curves["lags"][:, 0]
    np.testing.assert_array_equal(lags[:, 0], lags[:, 1])
    assert np.ptp(lags[-1, 0]) > 1e-3  # and they have moved
    other = together[0].curves["lags"][:, 0]
    assert (other[-1, 0] != other[-1, 1]).any()


@pytest.mark.slow
def test_64_bits_are_the_same_run_with_smaller_rounding(together, tmp_path):
    runs = [dataclasses.replace(run, config=dataclasses.replace(run.config, precision="fp64")) for run in RUNS[:2]]

    def stop(now):
        if now.steps >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(runs, checkpoint=tmp_path, checkpoint_seconds=0, progress=stop)
    one, equal = train(runs, checkpoint=tmp_path)
    assert jax.numpy.ones(()).dtype == np.float32  # outside nothing has changed
    assert one.curves["loss"].dtype == one.curves["lags"].dtype == np.float64
    for name in ("loss", "excess", "divergences", "lags"):
        # Twenty steps of AdamW from the same start, on the same data: apart by what fp32 rounds off.
        np.testing.assert_allclose(one.curves[name], together[0].curves[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert (one.curves["loss"] != together[0].curves["loss"]).any()
    heads = equal.curves["lags"][:, 0]
    np.testing.assert_array_equal(heads[:, 0], heads[:, 1])
    assert np.ptp(heads[-1, 0]) > 1e-3


def test_training_is_plain_optax_on_the_supply(together):
    """Ten steps written out: the batches of `Supply`, the loss of the task, clipped AdamW."""
    run = together[0].run
    key = raw(jax.random.key(run.seed))
    truth, parameters = TASK.truth(fold_in(key, 0)), MINIMAL.init(fold_in(key, 1))
    supply, stream = Supply(64, 32), fold_in(key, 2)
    data = supply.dataset(TASK, stream, truth)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05, weight_decay=0.01))
    memory = optimizer.init(parameters)

    def loss(p, tokens):
        logits = MINIMAL.forward(p, tokens[:, :-1]).logits[:, -TASK.generated :]
        return TASK.cross_entropy(tokens, jax.nn.log_softmax(logits, -1))

    @jax.jit
    def follow(parameters, memory, step):
        gradient = jax.grad(loss)(parameters, supply.at(TASK, stream, step, truth, data))
        updates, memory = optimizer.update(gradient, memory, parameters)
        return optax.apply_updates(parameters, updates), memory

    for step in range(10):
        parameters, memory = follow(parameters, memory, step)
    tests = TASK.sample(fold_in(key, 3), 64, truth)
    assert float(loss(parameters, tests)) == pytest.approx(float(together[0].curves["loss"][2]), rel=1e-4)


@pytest.mark.slow
def test_predictors_of_restricted_context(tmp_path):
    """The one that sees all tokens, on fresh data as the run is, ends where the run ends; the one that sees less does not."""
    config = dataclasses.replace(BASE, samples=None, windows=(1, LENGTH), optimizer=Optimizer("adamw", 0.2, clip=1.0))
    made = Run(config, 0)
    (history,) = train([made])
    less, all = history.curves["restricted"].T
    assert all[0] > 0.1
    assert all[-1] == pytest.approx(0, abs=1e-4)  # two programs, twenty steps: near rounding
    assert less[-1] > 0.01

    def stop(now):
        if now.steps >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([made], checkpoint=tmp_path, checkpoint_seconds=0, progress=stop)
    (again,) = train([made], checkpoint=tmp_path)  # with what it was compared with
    np.testing.assert_array_equal(again.curves["restricted"], history.curves["restricted"])
    assert run_from_json(json.loads(json.dumps(run_json(made)))) == made


@pytest.mark.slow
def test_the_full_model_learns_from_fresh_data_with_dropout():
    made = train([dataclasses.replace(run, config=dataclasses.replace(run.config, steps=40)) for run in FULL_RUNS])
    for history in made:
        assert history.curves["lags"].shape[1:] == (1, 2, 2)
        assert history.curves["excess"][-1] < 0.7 * history.curves["excess"][0]


def test_training_drops_other_units_at_every_step_and_tests_none():
    wet = FULL_RUNS[0].config
    dry = dataclasses.replace(wet, model=dataclasses.replace(FULL, dropout=0.0))
    shape = Shape.of([wet])
    slot = start(shape, FULL_RUNS[0])
    data = draw(shape, slot)
    now, later = (float(loss_of(shape, slot.parameters, data, slot._replace(step=slot.step + n))) for n in (0, 1))
    without = float(loss_of(Shape.of([dry]), slot.parameters, data, slot))
    assert len({now, later, without}) == 3
    tested = TASK.cross_entropy(data, predictions(TASK, FULL, slot.parameters, data))
    assert float(tested) == pytest.approx(without, rel=1e-6)


def test_records_give_back_what_was_seen(together):
    results = [Result.of(history) for history in together]
    runs, curves = record_tables(results, [run.identity for run in RUNS])
    assert set(runs["importance"]) == {2.0, 1.3}
    assert set(runs["spans"]) == {"[1, 1]"}
    records = Records(runs, pd.concat([curves.assign(entropy_0_0=np.nan)]))
    check_records(records, results)


def test_identities():
    assert RUNS[0].identity == "67719c21fb2cfde1"  # pinned: fields that came later must not change it
    weights = dataclasses.replace(TASK, groups=Groups((1, 1), weights=((1,), (2,))))
    same = dataclasses.replace(TASK, groups=Groups((1, 1), weights=((1.0,), (2.0,))))
    assert Run(dataclasses.replace(BASE, task=weights), 0).identity == Run(dataclasses.replace(BASE, task=same), 0).identity
    different = {run.identity for run in [*RUNS, *FULL_RUNS, Run(dataclasses.replace(BASE, samples=None), 0)]}
    assert len(different) == len(RUNS) + len(FULL_RUNS) + 1
    assert Run(BASE, 0).identity == IDENTITY  # fields that came later are left out of it
    assert Run(dataclasses.replace(BASE, windows=(1, 2)), 0).identity not in {IDENTITY, *different}


def test_the_cadence_suits_short_runs():
    assert [next_evaluation(s, 5) for s in (0, 5, 495, 1000, 4000)] == [5, 10, 500, 1020, 4080]


def test_cost_grows_with_the_model():
    sizes = [Shape.of([run.config]) for run in (RUNS[0], FULL_RUNS[0])]
    for shape in sizes:
        assert run_bytes(shape) > 0
        deeper = dataclasses.replace(shape, model=dataclasses.replace(shape.model, layers=2))
        assert step_operations(deeper) > step_operations(shape) > 0
        assert step_operations(dataclasses.replace(shape, batch=16)) == pytest.approx(step_operations(shape) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": Transformer()}, "learned by a MinimalAttention or a ChainTransformer"),
        ({"model": MinimalAttention(9, 5)}, "must read 5 positions of 5 tokens for this chain, got 9 of 5"),
        ({"precision": "bf16"}, "trained in precision fp32 or fp64, got 'bf16'"),
        ({"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"windows": (0, 2)}, r"windows must be a tuple .in TOML a list. of numbers of tokens from 1 to 5, got \(0, 2\)"),
        ({"windows": (6,)}, "windows must be a tuple .in TOML a list. of numbers of tokens from 1 to 5"),
        ({"windows": (2,), "model": dataclasses.replace(MINIMAL, layers=2)}, "windows are for a model of one layer"),
        ({"task": SingleLocation(8, 2)}, "MinimalAttention learns a MarkovChain; for this task choose a Transformer"),
        ({"task": SingleLocation(8, 2), "model": Transformer()}, "samples belongs to MarkovChain"),
        (
            {"task": SingleLocation(8, 2), "model": Transformer(), "samples": None, "windows": (2,)},
            "windows belongs to MarkovChain",
        ),
        ({"task": SingleLocation(8, 2), "model": Transformer(), "precision": "fp64"}, "precision fp64 belongs to MarkovChain"),
    ],
)
def test_wrong_input_is_named(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(BASE, **change)


def test_clip_must_be_positive():
    with pytest.raises(InputError, match="clip must be positive"):
        Optimizer(clip=0.0)
