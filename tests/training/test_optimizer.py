"""Optimizers: any optimizer of Optax by name, or the factory of a user."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo.core.errors import InputError
from emergo.training._check import check_config
from emergo.training._program import Program

from .own import BASE, follows, plain_run, run_of, signs
from .untyped import Optimizer, Switch, WarmupCosine, groups_of, train


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            Optimizer("lion", 0.02, b1=0.8, weight_decay=0.1),
            optax.lion(0.02, b1=0.8, weight_decay=0.1),
        ),
        (Optimizer(signs, 0.02, decay=0.1), signs(0.02, decay=0.1)),
    ],
    ids=["lion", "own"],
)
def test_training_equals_optax(ours, theirs):
    run = run_of(optimizer=ours, steps=12)
    (result,) = train([run])
    follows(result, *plain_run(run, theirs)[1:])


def test_numbers_share_a_program_and_other_options_do_not():
    def count(*optimizers):
        return len(groups_of([run_of(optimizer=optimizer) for optimizer in optimizers]))

    assert count(Optimizer("adam", 0.1), Optimizer("adam", 0.2)) == 1
    assert count(Optimizer("adam", 0.1), Optimizer("adam", 0.1, b2=0.99)) == 1
    assert count(Optimizer("sgd", 0.1), Optimizer("sgd", 0.1, momentum=0.9)) == 2
    assert count(Optimizer("sgd", 0.1, momentum=0.8), Optimizer("sgd", 0.1, momentum=0.9)) == 1
    assert count(Optimizer("adam", 0.1), Optimizer("adam", 0.1, nesterov=True)) == 2
    assert count(Optimizer("adam", 0.1), Optimizer("adamw", 0.1)) == 2
    assert count(Optimizer("adam", 0.1), Optimizer("adam", WarmupCosine(0.1, warmup=2, end=9))) == 2


def test_every_run_of_a_stack_has_its_options():
    """Runs with one value of an option keep it static, so their program does not change."""
    decays = (0.0, 0.5)
    runs = [run_of(optimizer=Optimizer("adamw", 0.01, weight_decay=d), steps=20) for d in decays]
    results = train(runs, n_parallel=2)
    for result, decay in zip(results, decays, strict=True):
        follows(result, *plain_run(result.run, optax.adamw(0.01, weight_decay=decay))[1:])
    assert Program.of(*(run.config for run in runs)).injected == ("weight_decay",)
    assert Program.of(runs[1].config).injected == ()


def test_options_can_be_scheduled():
    def scheduled(learning_rate, weight_decay):
        return optax.adamw(learning_rate, weight_decay=weight_decay)

    decay = Switch(0.0, 0.5, at=10)
    [result] = train([run_of(optimizer=Optimizer("adamw", 0.01, weight_decay=decay), steps=20)])
    by_optax = optax.inject_hyperparams(scheduled)(
        0.01, weight_decay=lambda count: jnp.where(count < 10, 0.0, 0.5)
    )
    follows(result, *plain_run(result.run, by_optax)[1:])
    expected = np.where(result.curves["step"] < 10, 0.0, 0.5)
    np.testing.assert_array_equal(result.curves["weight_decay_now"], expected)
    for name in ("adam", "sgd"):  # without momentum, sgd ignores it
        words = f"nesterov cannot be a schedule, because {name} needs"
        with pytest.raises(InputError, match=words):
            Optimizer(name, nesterov=decay)


def test_every_run_of_a_stack_has_its_learning_rate():
    """The gradients are longer than the clip."""
    rates = (0.1, 0.01)
    fast, slow = (
        run_of(optimizer=Optimizer("sgd", rate, clip=0.5, momentum=0.9), steps=20) for rate in rates
    )
    results = train([fast, slow], n_parallel=2)
    for result, rate in zip(results, rates, strict=True):
        clipped = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(rate, momentum=0.9))
        follows(result, *plain_run(result.run, clipped)[1:])
    unclipped = plain_run(slow, optax.sgd(0.01, momentum=0.9))[1]
    assert abs(results[1].curves["loss"][-1] / unclipped[-1] - 1) > 0.05


def test_repr_and_parts():
    optimizer = Optimizer("adamw", learning_rate=3e-4, weight_decay=0.1)
    assert repr(optimizer) == "Optimizer('adamw', learning_rate=0.0003, weight_decay=0.1)"
    assert optimizer.replace(learning_rate=0.5) == Optimizer("adamw", 0.5, weight_decay=0.1)
    assert Optimizer(signs).label == "tests.training.own:signs"
    assert "clip=1.0" in repr(Optimizer(clip=1.0))


def test_options_have_one_form():
    one = Optimizer("rmsprop", 1, decay=np.float32(0.5), eps=0, momentum=1)
    assert one == Optimizer("rmsprop", 1.0, decay=0.5, eps=0.0, momentum=1.0)
    assert {type(value) for _, value in one.options} == {float}
    assert dict(Optimizer("adafactor", 0.1, min_dim_size_to_factor=8).options) == {
        "min_dim_size_to_factor": 8
    }


def no_rate(scale):
    return optax.scale(scale)


def no_transformation(learning_rate):
    return 3


def other_shapes(learning_rate):
    """A factory whose state changes its dtype in a step."""

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        return gradient, {"count": jnp.float32(0)}

    make: Any = optax.GradientTransformation
    return make(lambda params: {"count": jnp.int32(0)}, update)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimizer("adm"), "unknown optimizer 'adm'; did you mean .*adam"),
        (lambda: Optimizer("scale_by_adam"), "unknown optimizer 'scale_by_adam'"),
        (lambda: Optimizer("adam", weight_decay=0.1), "unknown option of adam 'weight_decay'"),
        (
            lambda: Optimizer("sgd", momentun=0.9),
            "unknown option of sgd 'momentun'; did you mean momentum",
        ),
        (lambda: Optimizer(signs, rate=1), "unknown option of tests.training.own:signs 'rate'"),
        (lambda: Optimizer(no_rate), "takes no learning_rate"),
        (lambda: Optimizer(learning_rate=0.0), "Optimizer.learning_rate must be positive, got 0"),
        (
            lambda: Optimizer(learning_rate=float("inf")),
            "learning_rate must be a finite number of at least 0.0, got inf",
        ),
        (
            lambda: Optimizer(learning_rate="fast"),
            "learning_rate must be a number of at least 0.0, got 'fast'",
        ),
        (lambda: Optimizer(clip=0.0), "Optimizer.clip must be positive, got 0"),
        (lambda: Optimizer("adam", eps=float("inf")), "Optimizer.eps must be finite, got inf"),
        (lambda: Optimizer("adam", b1=[[0.1], {}]), "Optimizer.options must be hashable"),
        (
            lambda: Optimizer(functools.partial(optax.adam, b1=0.5)).label,
            "cannot be found again by its name",
        ),
        (lambda: Optimizer(3), "Optimizer.name must be a text or a function, got 3"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            Optimizer(no_transformation),
            "Optimizer tests.training.test_optimizer:no_transformation failed: ",
        ),
        (Optimizer("lbfgs", 0.1), "Optimizer lbfgs failed: TypeError"),
        (
            Optimizer(other_shapes),
            "other_shapes must keep the shapes and types of parameters and of its state",
        ),
    ],
)
def test_an_optimizer_that_cannot_train_is_rejected(optimizer, message):
    with pytest.raises(InputError, match=message):
        check_config(BASE.replace(optimizer=optimizer), "cpu")
