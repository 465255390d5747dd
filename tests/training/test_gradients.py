"""Probes of gradients: the gradients of two halves of a batch of training data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Tap, probe
from emergo.core.errors import InputError
from emergo.core.random import fold_in, raw
from emergo.training import gradient_probe, probe_curves
from emergo.training._gradients import cosine
from emergo.training._program import (
    Program,
    arithmetic,
    draw,
    evaluate,
    half_gradients,
    largest_sizes,
    products,
    start,
    user_key,
)

from .own import BASE, CHAIN, TRANSFORMER, run_of
from .untyped import ChainTransformer, Run, check_config, train

PROBED = TRANSFORMER.replace(steps=30, threshold=None, probes=(gradient_probe,))
NAMES = [
    f"{what}_{path}_0"
    for path in ("query_key", "value_output")
    for what in ("gradient", "agreement")
]


@probe(gradients=True)
def both_halves(params, output, batch, truth, step, gradients):
    first, second = gradients
    return {"first": first["weights"], "second": second["weights"]}


def halves(run, step=0):
    program = Program.of(run.config)
    with arithmetic(run.config.precision), products(run.config.precision):
        slot = start(program, run)._replace(step=jnp.int32(step))
        return slot, jax.jit(functools.partial(half_gradients, program))(slot)


def test_the_gradients_use_fresh_data_of_the_training_distribution():
    """Only training data has noise. No run trains on the batch of the probe."""
    run = run_of(3, task__noise=2.0, batch=9)
    task = run.config.task
    model = run.config.model
    key = fold_in(raw(jax.random.key(3)), 2)
    slot, gradients = halves(run, step=7)
    batch = task.batch(user_key(fold_in(fold_in(key, 2**31 - 1), 7)), 9, slot.truth)
    trained_on = [
        draw(Program.of(run.config), slot._replace(step=jnp.int32(i))).inputs for i in range(20)
    ]
    assert min(float(jnp.abs(batch.inputs - inputs).max()) for inputs in trained_on) > 0.1
    for i, gradient in enumerate(gradients):
        half = jax.tree.map(
            lambda part, i=i: part[4 * i : 4 * i + 4], batch
        )  # the ninth is left out
        plain = jax.grad(
            lambda p, half=half: task.loss(model.apply(p, half.inputs, Tap(task.spec)), half).mean()
        )(slot.params)
        for name in plain:
            np.testing.assert_allclose(gradient[name], plain[name], rtol=1e-4, atol=1e-6)


def test_a_gradient_probe_does_not_change_a_run():
    probed, plain = (train([run_of(probes=probes)])[0] for probes in ((both_halves,), ()))
    for name, values in plain.curves.items():
        np.testing.assert_array_equal(values, probed.curves[name])
    assert plain.run.identity == probed.run.identity
    assert probed.curves["first"].shape[1:] == (2, 3, 3)


@pytest.mark.slow
def test_gradient_probe_is_the_same_alone_and_in_a_padded_stack():
    """Dims 2 and 4 and bursts 1 and 3 share a program."""
    configs = [PROBED.replace(task__dim=2), PROBED, PROBED.replace(task__burst=3)]
    program = Program.of(*configs)
    sizes = largest_sizes(configs)
    assert sizes == {"dim": 4, "burst": 3}
    stack = jax.tree.map(
        lambda *x: jnp.stack(x), *(start(program, Run(c, i), sizes) for i, c in enumerate(configs))
    )
    with products("fp32"):
        together = jax.jit(jax.vmap(functools.partial(evaluate, program)))(stack)
        for i, config in enumerate(configs):
            alone = jax.jit(functools.partial(evaluate, Program.of(config)))(
                start(Program.of(config), Run(config, i))
            )
            for name in NAMES:  # sums in another order, with zeros among their terms
                np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-4, atol=1e-5)


def test_gradient_probe_measures_norms_and_cosines():
    run = Run(PROBED, 0)
    slot, gradients = halves(run)
    batch = draw(Program.of(PROBED), slot)
    output = PROBED.model.apply(slot.params, batch.inputs)
    curves = gradient_probe(slot.params, output, batch, slot.truth, slot.step, gradients)
    for path, maps in (("query_key", ("query", "key")), ("value_output", ("value", "out"))):
        one, two = (
            np.concatenate(
                [np.ravel(leaf) for name in maps for leaf in getattr(gradient.layers[0], name)]
            )
            for gradient in gradients
        )
        expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert curves[f"agreement_{path}_0"] == pytest.approx(expected, abs=1e-5)
        assert curves[f"gradient_{path}_0"] == pytest.approx(
            np.linalg.norm(one + two) / 2, rel=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        PROBED.replace(precision="bf16"),
        PROBED.replace(n_train=20),
        CHAIN.replace(probes=(gradient_probe,), precision="fp64"),
        CHAIN.replace(
            probes=(gradient_probe,),
            model=ChainTransformer(heads=2, width=8, hidden=8),
            n_train=None,
        ),
    ],
    ids=["bf16", "finite", "fp64", "dropout"],
)
def test_gradient_probe_in_every_precision_and_kind_of_data(config):
    program = Program.of(config)
    with arithmetic(config.precision), products(config.precision):
        curves = jax.tree.map(
            np.asarray,
            jax.jit(functools.partial(evaluate, program))(start(program, Run(config, 0))),
        )
    names = probe_curves(config)
    assert {name for name in names if name[-1] == "0"} == set(NAMES)
    assert len(names) == 4 * config.model.layers
    for name in names:
        assert np.isfinite(curves[name])
        assert abs(curves[name]) <= 1 + 1e-6 if name.startswith("agreement") else curves[name] >= 0


@pytest.mark.slow
def test_dropout_differs_between_the_halves():
    """Both halves have the same sequences."""
    config = CHAIN.replace(
        model=ChainTransformer(heads=2, width=8, hidden=8, dropout=0.5), n_train=2, batch=2
    )
    program = Program.of(config)
    slot = start(program, Run(config, 0))
    same = jax.tree.map(lambda part: jnp.stack([part[0], part[0]]), slot.dataset)
    with products("fp32"):
        first, second = jax.jit(functools.partial(half_gradients, program))(
            slot._replace(dataset=same)
        )
    assert float(cosine(first.decode.weight.ravel(), second.decode.weight.ravel())) < 0.999


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": 1, "probes": (both_halves,)},
            "splits a batch in two: it needs batches of at least 2 sequences",
        ),
        (
            {"probes": (gradient_probe,)},
            "gradient_probe needs a model whose parameters have one of the names query, key, value",
        ),
    ],
)
def test_a_config_without_such_gradients_is_rejected(changes, message):
    with pytest.raises(InputError, match=message):
        check_config(BASE.replace(**changes), "cpu")
