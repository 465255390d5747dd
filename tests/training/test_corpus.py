"""Training on a corpus that runs share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Batch, Spec
from emergo.core.errors import InputError
from emergo.core.pytree import per_run
from emergo.core.random import fold_in, raw, uniform
from emergo.training._program import Program, abstract_slot, shared_data
from tests.texts import TEXT

from .helpers import check_going_on, identical
from .untyped import (
    Config,
    Optimizer,
    Run,
    Switch,
    Task,
    Text,
    Trained,
    Transformer,
    gradient_probe,
    train,
)

MODEL = Transformer(layers=1, heads=1, width=8, mlp=False, mask="causal", positions="learned")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(TEXT)
    return Config(
        Text(path, length=16),
        MODEL,
        Optimizer("adam", 0.01),
        batch=8,
        n_test=8,
        steps=100,
        threshold=None,
        precision="fp32",
    )


class Noisy(Task):
    """A user's task on a corpus: a number is repeated with noise in training."""

    noise: float = per_run(0.1)

    @property
    def spec(self):
        return Spec(2, 1, 1)

    def truth(self, key):
        return ()

    def data(self):
        return np.arange(100, dtype=np.float32)

    def from_corpus(self, data, key, step, n, truth) -> Any:
        half = jnp.asarray(data).reshape(2, 50)[0 if step is None else 1]
        rows = uniform(raw(key) if step is None else fold_in(raw(key), step), n, 1)
        x = half[jnp.floor(50 * rows[:, 0]).astype(jnp.int32)][:, None, None] / 100
        noise = 0.0 if step is None else self.noise
        return Batch(jnp.concatenate([x, x], 1), x[:, 0] + noise)

    def loss(self, output, batch):
        return jnp.sum((output.value - batch.target) ** 2, -1)


def test_runs_of_a_program_share_one_copy_and_continue_exactly(base, tmp_path):
    plain, copying = (base.replace(task__copy=Switch(p, 0.0, at=50)) for p in (0.0, 0.5))
    runs = [Run(plain, 0), Run(plain, 1), Run(copying, 0)]
    results = train(runs, n_parallel=2)
    check_going_on(results, tmp_path, n_parallel=2)
    losses = [result.curves["loss"] for result in results]
    assert all(loss[-1] < 0.8 * loss[0] for loss in losses)
    assert len({loss[-1] for loss in losses}) == 3
    assert losses[0][0] == losses[2][0]  # the test set does not depend on repetition
    slot = abstract_slot(Program.of(base), runs[0])
    sizes = [leaf.shape for leaf in jax.tree.leaves(slot.shared)]
    assert sizes == [leaf.shape for leaf in jax.tree.leaves(shared_data(base.task))]
    curves = results[0].curves
    assert curves["loss_by_position"].shape[1:] == (5,)
    assert curves["induction_head"].shape[1:] == curves["entropy"].shape[1:] == (1, 1)
    assert {"accuracy_copied", "loss_copied", "in_context"} <= {*curves}


def test_a_run_does_not_depend_on_where_its_corpus_came_from(base, tmp_path):
    (tmp_path / "moved.txt").write_text(TEXT)
    moved = base.replace(task=Text(tmp_path / "moved.txt", length=16), steps=25)
    here = base.replace(steps=25)
    assert Run(moved, 0).identity == Run(here, 0).identity
    one, two = (train([Run(config, 0)])[0] for config in (moved, here))
    identical(one, two)
    assert str(tmp_path) not in str(one.content())


def test_a_users_task_draws_from_its_corpus():
    config = Config(
        Noisy(),
        Transformer(layers=1, heads=1, width=4, mlp=False),
        Optimizer("adam", 0.03),
        batch=16,
        n_test=16,
        steps=100,
        threshold=None,
        precision="fp32",
        probes=(gradient_probe,),
    )
    (result,) = train([Run(config, 0)])
    assert result.curves["train_loss"][-1] < 0.02  # of numbers from 0.5 to 1, plus 0.1
    assert result.curves["loss"][-1] > result.curves["train_loss"][-1]  # of numbers below 0.5
    assert np.isfinite(result.curves["agreement_query_key_0"]).all()


def test_the_test_set_of_a_trained_model_is_validation_text(base):
    params = base.model.init(jax.random.key(0), base.task.spec)
    batch = Trained(Run(base, 0), 0, params).batch(3)
    validation = bytes(base.task.data()["validation"].tolist())
    assert batch.inputs.shape == (3, 16)
    assert all(bytes(row.tolist()) in validation for row in batch.inputs)


def test_what_does_not_fit_a_corpus_is_refused(base):
    with pytest.raises(InputError, match="Text draws from its whole corpus; leave out n_train"):
        base.replace(n_train=10)
    with pytest.raises(InputError, match=r"Transformer without a mask can see; choose mask='caus"):
        base.replace(model__mask="none")
    with pytest.raises(InputError, match="batch is 2000, and there are 8"):
        train([Run(base.replace(batch=2000), 0)])
    with pytest.raises(InputError, match="n_test is 500, and there are"):
        train([Run(dataclasses.replace(base, n_test=500), 0)])


def test_a_sample_is_the_most_likely_continuation(base):
    """Also when the text has become longer than a sequence."""
    trained = Trained(Run(base, 0), 0, base.model.init(jax.random.key(1), base.task.spec))
    tokens = list(b"Ada counts")
    for _ in range(20):
        window = tokens[-16:]
        padded = jnp.array(window + [0] * (16 - len(window)))[None]
        logits = trained.forward(padded).value[0, len(window) - 1]
        tokens.append(int(jnp.argmax(logits)))
    expected = base.task.decode(tokens[10:])
    assert trained.sample("Ada counts", tokens=20, temperature=0) == expected
    assert trained.sample("x", 50, seed=1) == trained.sample("x", 50, seed=1)
    assert trained.sample("x", 50, seed=1) != trained.sample("x", 50, seed=2)
    with pytest.raises(InputError, match="a temperature of 0 or more, got 5 and -1"):
        trained.sample("x", 5, temperature=-1)
