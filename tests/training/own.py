"""A task, models, an optimizer, probes and schedules of a user. All compile quickly."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from emergo.core.contract import Batch, Below, Output, Spec, Tap, probe
from emergo.core.pytree import Schedule, per_run
from emergo.core.random import fold_in, normals, raw, uniform
from emergo.tasks import answer_tokens, token_losses
from emergo.training._program import user_key

from .untyped import (
    Attention,
    Config,
    Groups,
    MarkovChain,
    MinimalAttention,
    Model,
    Optimizer,
    Run,
    SingleLocation,
    Task,
    Transformer,
    Variant,
)


class Echo(Task):
    """The target is a linear map of the last token, times a gain. Training has noise, the test set
    has none."""

    length: int
    dim: int
    gain: float = per_run(default=1.0)
    noise: float = per_run(default=0.0, low=0.0)
    learned = Below("error", 0.05)
    eval_every = 5

    @property
    def spec(self) -> Any:
        return Spec(length=self.length, inputs=self.dim, outputs=self.dim)

    def truth(self, key):
        return normals(raw(key), 1, self.dim, self.dim)[0] / self.dim**0.5

    def batch(self, key, n, truth) -> Any:
        tokens = normals(
            raw(key), n, self.length, self.dim
        )  # these compile ten times as fast as JAX's normals
        noise = self.noise * normals(fold_in(raw(key), 1), 1, n, self.dim)[0]
        relevant = jnp.broadcast_to(jnp.arange(self.length) == self.length - 1, (n, self.length))
        return Batch(tokens, self.gain * tokens[:, -1] @ truth + noise, relevant)

    def loss(self, output, batch):
        return jnp.mean((output.value - batch.target) ** 2, -1)

    def metrics(self, output, batch, truth) -> Any:
        return {"error": self.loss(output, batch) / jnp.mean(batch.target**2)}

    def at_test(self):
        return self.replace(noise=0.0, gain=1.0)


class Shifted(Echo):
    """Measured also on a task with another gain."""

    def variants(self):
        return {"doubled": Variant(self.at_test().replace(gain=2.0))}


class Sums(Task):
    """The sum of two digits, from a table of all pairs."""

    scale: float = per_run(1.0)

    @property
    def spec(self):
        return Spec(2, 10, 1)

    def truth(self, key):
        return ()

    def data(self):
        a, b = np.divmod(np.arange(100), 10)
        inputs: Any = np.stack([a, b], 1)
        return Batch(inputs, (a + b)[:, None] / 10)

    def loss(self, output, batch):
        return self.scale * jnp.mean((output.value - batch.target) ** 2, -1)


class Next(Task):
    """The next token of sequences that repeat three random tokens."""

    length: int
    vocabulary: int
    deferred: bool = True

    @property
    def spec(self):
        sizes = (self.length, self.vocabulary, self.vocabulary)
        return Spec(*sizes, answers=self.length, deferred=self.deferred)

    def truth(self, key):
        return ()

    def batch(self, key, n, truth) -> Any:
        words = jnp.floor(self.vocabulary * uniform(raw(key), n, 3)).astype(jnp.int32)
        tokens = jnp.tile(words, (1, self.length // 3 + 1))[:, : self.length + 1]
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, output, batch):
        return token_losses(output, batch.target).mean(-1)

    def metrics(self, output, batch, truth) -> Any:
        return {"accuracy": jnp.mean(answer_tokens(output) == batch.target, -1)}


class Heads(Model):
    """Two heads that attend to positions, each with its own map."""

    scale: float = per_run(default=1.0)

    def init(self, key, spec) -> Any:
        scores = normals(raw(key), 1, 2, spec.length)[0] / 2
        weights = normals(fold_in(raw(key), 1), 2, spec.inputs, spec.outputs)
        return {"scores": scores, "weights": self.scale * weights / spec.inputs**0.5}

    def apply(self, params, inputs, tap=lambda name, value: value) -> Any:
        n, length = inputs.shape[:2]
        scores = tap(
            "layers.0.scores", jnp.broadcast_to(params["scores"][None, :, None], (n, 2, 1, length))
        )
        pattern = tap("layers.0.pattern", jax.nn.softmax(scores, -1))
        mixed = tap("layers.0.mixed", jnp.einsum("nhqt,ntd->nqhd", pattern, inputs))
        value = tap("value", jnp.einsum("nqhd,hdo->no", mixed, params["weights"]))
        return Output(value, pattern[:, None, :, 0])


class FlatModule(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x):
        return self.linear(x.ravel())


def make_flat(key, spec):
    return FlatModule(eqx.nn.Linear(spec.length * spec.inputs, spec.outputs, key=key))


class GatedAttention(Attention):
    """Softmax, times a learned gate per head."""

    gate: float = per_run(1.0)

    def init(self, key, heads, size, length):
        return {"gate": jnp.full(heads, self.gate)}

    def weights(self, params, scores, visible):
        return super().weights(params, scores, visible) * params["gate"][:, None, None]


class Pooled(eqx.Module):
    """The mean over positions, with dropout; it reports its attention."""

    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x, key):
        length = x.shape[0]
        hidden = self.dropout(x.mean(0), key=key)
        return Output(self.linear(hidden), jnp.full((1, 1, length), 1 / length))


def make_pooled(key, spec, drop):
    return Pooled(eqx.nn.Linear(spec.inputs, spec.outputs, key=key), eqx.nn.Dropout(drop))


def signs(learning_rate, decay=0.0):
    """A user's optimizer: steps by the sign of the gradient."""

    def step(gradient: Any, params: Any) -> Any:
        return jax.tree.map(
            lambda g, p: -learning_rate * (jnp.sign(g) + decay * p), gradient, params
        )

    return optax.stateless(step)


def clock(params, output, batch, truth, step):
    return {"clock": jnp.float32(step)}


@probe(reads=["layers.*.scores"])
def largest_score(params, output, batch, truth, step):
    return {"largest_score": jnp.max(output.taps["layers.0.scores"])}


class Halving(Schedule):
    """A user's schedule that counts the evaluations of its run."""

    first: float = per_run()

    def start(self):
        return jnp.int32(0)

    def update(self, state, metrics):
        return state + 1

    def value(self, step, state):
        return self.first * 0.5**state

    def extremes(self):
        return (0.0, self.first)


BASE = Config(
    Echo(length=4, dim=3),
    Heads(),
    Optimizer("adam", learning_rate=0.05),
    batch=8,
    n_test=16,
    steps=20,
    threshold=None,
    precision="fp32",
)

# A small task and model of the package.
TRANSFORMER = Config(
    SingleLocation(6, 4, position="random", indicator=True),
    Transformer(layers=1, heads=2, width=8, mlp_factor=2),
    Optimizer(learning_rate=0.02),
    batch=8,
    n_test=16,
    precision="fp32",
    threshold=0.15,
    steps=1000,
)
LANGUAGE = Config(
    Next(length=8, vocabulary=5),
    Transformer(layers=1, heads=2, width=8, mlp_factor=2, norm="pre", mask="causal"),
    Optimizer(learning_rate=0.02),
    batch=8,
    n_test=16,
    precision="fp32",
    threshold=None,
    steps=30,
)
CHAIN = Config(
    MarkovChain(Groups((1, 1), importance=2.0), vocabulary=5, generated=4),
    MinimalAttention(heads=2, scale=1e-3),
    Optimizer("adamw", 0.05, clip=1.0, weight_decay=0.01),
    batch=32,
    precision="fp32",
    steps=20,
    threshold=None,
    n_test=64,
    n_train=64,
)


def plain_run(run, optimizer, forward=None, task_at=None):
    """Train a run with a plain loop, using the documented random keys.

    **Arguments:**

    - `forward(params, inputs, step)`: by default the model of the run.
    - `task_at(step)`: by default the task of the run.

    **Returns:** the parameters at the end, the test loss at every step from 0 on, and the
    training loss of every step.
    """
    config = run.config
    key = raw(jax.random.key(run.seed))
    task = config.task
    model = config.model
    apply = forward or (lambda params, inputs, step: model.apply(params, inputs, Tap(task.spec)))
    task_at = task_at or (lambda step: task)
    truth = jax.jit(task.truth)(user_key(fold_in(key, 0)))
    params = jax.jit(lambda key: model.init(key, task.spec))(user_key(fold_in(key, 1)))
    opt_state = optimizer.init(params)

    @jax.jit
    def test_loss(params, step):
        at_test = task_at(step).at_test()
        batch = at_test.batch(user_key(fold_in(key, 3)), config.n_test, truth)
        return jnp.mean(at_test.loss(apply(params, batch.inputs, step), batch))

    @jax.jit
    def one_step(params, opt_state, step):
        now = task_at(step)
        batch = now.batch(user_key(now.data_key(fold_in(key, 2), step)), config.batch, truth)
        loss, gradient = jax.value_and_grad(
            lambda p: jnp.mean(now.loss(apply(p, batch.inputs, step), batch))
        )(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    tested = []
    trained = []
    with jax.default_matmul_precision("highest"):
        for step in range(config.steps):
            tested.append(float(test_loss(params, step)))
            params, opt_state, loss = one_step(params, opt_state, step)
            trained.append(float(loss))
        tested.append(float(test_loss(params, config.steps)))
    return params, np.array(tested), np.array(trained)


def follows(result, tested, trained, tolerance=1e-4):
    """Require that a result has the losses of a plain loop, up to rounding."""
    steps = result.curves["step"]
    np.testing.assert_allclose(result.curves["loss"], tested[steps], rtol=tolerance, atol=1e-7)
    means = [trained[a:b].mean() for a, b in itertools.pairwise(steps)]
    np.testing.assert_allclose(result.curves["train_loss"][1:], means, rtol=tolerance)


def run_of(seed=0, **changes):
    return Run(BASE.replace(**changes), seed)
