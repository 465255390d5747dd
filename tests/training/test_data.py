"""Finite data that runs share, with a test set that is disjoint from the training set."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.core.random import permuted, raw
from emergo.training._program import Program, abstract_slot, draw, held_out, shared_data, start

from .own import BASE, Sums
from .untyped import Optimizer, Run, Transformer, train


class Leaky(Sums):
    def data(self) -> Any:
        return {"x": np.ones((4, 2)) * self.scale}


class Tiny(Sums):
    def data(self) -> Any:
        return {"x": np.ones((1, 2))}


CONFIG = BASE.replace(
    task=Sums(),
    model=Transformer(layers=1, heads=1, width=4, mlp=False),
    n_train=30,
    n_test=20,
    batch=7,
)


def rows_of(batch):
    return (batch.inputs[:, 0] * 10 + batch.inputs[:, 1]).tolist()


@pytest.mark.parametrize("count", [2, 3, 16, 97])
def test_permutations_contain_every_number_once(count):
    images = permuted(raw(jax.random.key(count)), count, jnp.arange(count))
    assert sorted(images.tolist()) == list(range(count))


def test_training_and_test_sets_are_disjoint_and_epochs_complete():
    program = Program.of(CONFIG)
    for seed in range(3):
        slot = start(program, Run(CONFIG, seed))._replace(shared=shared_data(CONFIG.task))
        tested = set(rows_of(held_out(program, slot, CONFIG.task)))
        epochs = [
            [
                rows_of(draw(program, slot._replace(step=jnp.int32(step))))
                for step in range(a, a + 4)
            ]
            for a in (0, 4)
        ]
        one, two = ([row for rows in epoch for row in rows] for epoch in epochs)
        assert len(set(one)) == len(one) == 28  # 30 training sequences hold four batches of 7
        assert len(tested) == 20
        assert not tested & {*one, *two}
        assert len({*one, *two}) <= 30
        assert one != two
    assert abstract_slot(program, Run(CONFIG, 0)).dataset is None


def test_runs_that_share_data_differ_by_seed_and_by_numbers_of_the_task():
    runs = [Run(CONFIG, 0), Run(CONFIG, 1), Run(CONFIG.replace(task__scale=2.0), 0)]
    results = train(runs, n_parallel=2)
    assert not np.array_equal(results[0].curves["loss"], results[1].curves["loss"])
    np.testing.assert_allclose(
        results[2].curves["loss"][0], 2 * results[0].curves["loss"][0], rtol=1e-6
    )


def test_by_default_all_but_the_test_set_is_for_training():
    assert Program.of(CONFIG.replace(n_train=None)).n_train == 80


def test_unsuitable_data_are_refused():
    with pytest.raises(InputError, match="Sums has 100 sequences, too few for n_train 90 and n_te"):
        train([Run(CONFIG.replace(n_train=90), 0)])
    with pytest.raises(InputError, match=r"Leaky\.data failed"):
        train([Run(CONFIG.replace(task=Leaky()), 0)])
    with pytest.raises(InputError, match=r"Tiny\.data must hold at least 2 sequences, got 1"):
        train([Run(CONFIG.replace(task=Tiny()), 0)])


def test_numbers_of_the_optimizer_share_the_program_of_a_grid():
    """As for modular addition with several weight decays."""
    optimizers = [Optimizer("adamw", 0.01, weight_decay=decay) for decay in (0.0, 1.0)]
    weak, strong = train([Run(CONFIG.replace(optimizer=one), 0) for one in optimizers])
    assert weak.curves["loss"][-1] != strong.curves["loss"][-1]
