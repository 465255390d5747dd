"""The contract of all tasks. Add a task to `CASES` to test it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from emergo.core.contract import Batch, Output, Spec
from emergo.measure import HEAD_NAMES, head_scores
from emergo.tasks import (
    Groups,
    MarkovChain,
    MarkovRegression,
    Recall,
    SingleLocation,
    Task,
    head_probe,
)
from emergo.tasks._task import attention_probe


class Mean(Task):
    """The smallest task of a user."""

    length: int
    gain: float = 2.0

    @property
    def spec(self) -> Spec:
        return Spec(length=self.length, inputs=2, outputs=2)

    def truth(self, key):
        return jax.random.normal(key, (2,))

    def batch(self, key, n, truth):
        inputs = jax.random.normal(key, (n, self.length, 2))
        return Batch(inputs, self.gain * inputs.mean(1) * truth)

    def loss(self, output, batch):
        return jnp.sum((output.value - batch.target) ** 2, -1)


# Tasks; True if a smaller batch is the start of a larger one.
CASES = [
    (Mean(4), False),
    (SingleLocation(6, 3, 2, 0.3), False),
    (SingleLocation(6, 3, 2, 0.3, "random", True, "draw"), False),
    (Recall(3, 7), True),
    (Recall(3, 7, 2.0, 0.4, "chance"), True),
    (MarkovChain(Groups((1, 2), 2.0), 5, generated=4), True),
    (MarkovRegression(Groups((1, 2), 2.0), 3, 5), False),
]
TASKS = [task for task, _ in CASES]
every_task = pytest.mark.parametrize("task", TASKS, ids=repr)


@functools.cache
def output_of(task, n):
    spec = task.spec
    rng = np.random.default_rng(7)
    shape = (n, spec.outputs) if spec.answers is None else (n, spec.answers, spec.outputs)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    attention, pattern = (
        softmax(normal(*sizes), -1)
        for sizes in ((n, 2, 3, spec.length), (n, 3, spec.length, spec.length))
    )
    taps = {f"layers.{layer}.pattern": jnp.asarray(pattern) for layer in range(2)}
    value, attention, path = map(
        jnp.asarray, (normal(*shape), attention, normal(spec.inputs, spec.outputs))
    )
    return Output(value, attention, path, taps)


@functools.cache
def batch_of(task, n=5):
    """Compile `batch` as one program."""
    return jax.jit(lambda key, truth: task.batch(key, n, truth))


@functools.cache
def drawn(task, n=5):
    truth = jax.jit(task.truth)(jax.random.key(0))
    return truth, batch_of(task, n)(jax.random.key(1), truth)


@every_task
def test_batches_have_the_sizes_of_the_spec(task):
    _, batch = drawn(task)
    spec = task.spec
    assert all(isinstance(size, int) for size in spec[:3])
    if jnp.issubdtype(batch.inputs.dtype, jnp.integer):
        assert batch.inputs.shape == (5, spec.length)
        assert batch.inputs.dtype == jnp.int32
        assert 0 <= int(batch.inputs.min()) <= int(batch.inputs.max()) < spec.inputs
    else:
        assert batch.inputs.shape == (5, spec.length, spec.inputs)
        assert batch.inputs.dtype == jnp.float32
    assert all(len(part) == 5 for part in jax.tree.leaves(batch.target))
    if batch.relevant is not None:
        assert batch.relevant.shape == (5, spec.length)
        assert batch.relevant.dtype == bool
        assert batch.relevant.any(1).all()


@every_task
def test_losses_and_metrics_have_one_number_per_sequence(task):
    truth, batch = drawn(task)
    output = output_of(task, 5)
    losses, metrics = jax.jit(lambda *given: (task.loss(*given[:2]), task.metrics(*given)))(
        output, batch, truth
    )
    for numbers in (losses, *metrics.values()):
        assert numbers.shape == (5,)
        assert numbers.dtype == jnp.float32
        assert np.isfinite(numbers).all()
    assert task.learned.metric in {"loss", *metrics}
    # The loss of a sequence does not depend on the others.
    alone = jax.jit(task.loss)(
        *jax.tree.map(lambda x: np.asarray(x)[2:3], (Output(output.value), batch))
    )
    np.testing.assert_allclose(alone, np.asarray(losses)[2:3], rtol=1e-6)
    assert (
        task.loss(output._replace(value=output.value.astype(jnp.bfloat16)), batch).dtype
        == jnp.float32
    )


@every_task
def test_a_gradient_step_lowers_the_loss(task):
    _, batch = drawn(task)
    output = output_of(task, 5)

    def mean_loss(value):
        return task.loss(output._replace(value=value), batch).mean()

    slope_of = jax.jit(jax.value_and_grad(mean_loss))
    before, slope = slope_of(output.value)
    assert slope_of(output.value - 0.1 * slope)[0] < before


@every_task
def test_probes_return_named_arrays_for_all_models(task):
    truth, batch = drawn(task)
    output = output_of(task, 5)
    measured = jax.jit(lambda: [one(None, output, batch, truth, 0) for one in task.probes()])()
    names = [name for arrays in measured for name in arrays]
    assert len(set(names)) == len(names) > 0
    for one, arrays in zip(task.probes(), measured, strict=True):
        assert all(np.isfinite(array).all() for array in arrays.values())
        assert isinstance(one(None, Output(output.value), batch, truth, 0), dict)
    if attention_probe in task.probes():
        assert "entropy" in names
        assert ("attention" in names) == (batch.relevant is not None)


@every_task
def test_data_is_a_function_of_the_key(task):
    truth, batch = drawn(task)
    draw = batch_of(task)
    again = draw(jax.random.key(1), truth)
    raw = draw(jax.random.key_data(jax.random.key(1)), truth) if type(task) is not Mean else again
    other = draw(jax.random.key(2), truth)
    jax.tree.map(np.testing.assert_array_equal, batch, again)
    jax.tree.map(np.testing.assert_array_equal, batch, raw)
    assert (np.asarray(batch.inputs) != np.asarray(other.inputs)).any()
    keys = np.array(
        [task.data_key(jax.random.key_data(jax.random.key(0)), step) for step in range(5)]
    )
    assert len(np.unique(keys, axis=0)) == 5


@pytest.mark.parametrize("task", [task for task, prefix in CASES if prefix], ids=repr)
def test_a_smaller_batch_is_the_start_of_a_larger_one(task):
    few = drawn(task, 5)[1]
    many = drawn(task, 9)[1]
    jax.tree.map(
        lambda one, two: np.testing.assert_array_equal(one, np.asarray(two)[:5]), few, many
    )


@every_task
def test_stacked_runs_draw_the_same_as_alone(task):
    def one(task, key):
        truth = task.truth(key)
        batch = task.at_test().batch(key, 4, truth)
        variants = {
            name: variant.task.batch(key, 4, truth) for name, variant in task.variants().items()
        }
        return truth, batch, {name: variants[name] for name in sorted(names & set(variants))}

    names = set(task.variants())
    keys = jax.random.split(jax.random.key(3), 3)
    stacked = jax.tree.map(lambda leaf: jnp.full(3, leaf), task)
    mapped = jax.jit(jax.vmap(one))(stacked, keys)
    for i, key in enumerate(keys):
        # The last bit of a logarithm may depend on the loop around it.
        inside = jax.tree.map(lambda x, i=i: np.asarray(x)[i], mapped)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6),
            one(task, key),
            inside,
        )


@every_task
def test_tasks_are_pytrees_and_hashable(task):
    leaves, structure = jax.tree.flatten(task)
    assert jax.tree.unflatten(structure, leaves) == task
    assert hash(task) == hash(dataclasses.replace(task))
    assert all(isinstance(leaf, float) for leaf in leaves)
    assert task.replace() == task


@every_task
def test_traced_numbers_can_be_replaced(task):
    def inside(one):
        kept.append((type(one), one.at_test().spec))
        return jax.tree.leaves(one.replace())

    kept = []
    assert jax.jit(inside)(task) == pytest.approx(jax.tree.leaves(task))
    assert kept == [(type(task), task.spec)]


def test_the_base_class_has_defaults_for_all_but_four_methods():
    task = Mean(4)
    truth, batch = drawn(task)
    assert task.metrics(output_of(task, 5), batch, truth) == {}
    assert task.at_test() is task
    assert task.variants() == {}
    assert task.learned == ("loss", 0.1, "below")
    assert task.eval_every == 25
    task.check_threshold(-3.0)
    key = jax.random.key(0)
    output = output_of(task, 5)
    for call in (
        lambda t: t.spec,
        lambda t: t.truth(key),
        lambda t: t.batch(key, 1, ()),
        lambda t: t.loss(output, batch),
    ):
        with pytest.raises(NotImplementedError):
            call(Task())


def test_attention_is_measured_by_layer_and_head():
    attention = jnp.stack(
        [jnp.full((5, 1, 4), 0.25), jnp.broadcast_to(jnp.eye(4)[1], (5, 1, 4))], 1
    )
    relevant = jnp.broadcast_to(jnp.arange(4) == 1, (5, 4))
    batch = Batch(jnp.zeros((5, 4, 1)), None, relevant)
    curves = attention_probe(None, Output(jnp.zeros((5, 1)), attention), batch, (), 0)
    np.testing.assert_allclose(curves["entropy"], [[np.log(4)], [0]], atol=1e-6)
    np.testing.assert_allclose(curves["attention"], [[0.25], [1]], rtol=1e-6)


def test_head_probe_measures_the_scores_of_measure():
    task = Recall(3, 7)
    batch = task.batch(jax.random.key(0), 8, ())
    patterns = jax.nn.softmax(jax.random.normal(jax.random.key(1), (2, 8, 3, 7, 7)))
    taps = {f"layers.{i}.pattern": pattern for i, pattern in enumerate(patterns)}
    output = Output(jnp.zeros((8, 7)), taps=taps)
    scores = head_scores(np.asarray(patterns).swapaxes(0, 1), np.asarray(batch.inputs))
    curves = head_probe((), output, batch, (), 0)
    assert tuple(curves) == HEAD_NAMES
    for name in HEAD_NAMES:
        assert curves[name].shape == (2, 3)
        np.testing.assert_allclose(curves[name], scores[name], rtol=1e-5)  # another order of sums
    features = batch._replace(inputs=jnp.zeros((8, 7, 2)))
    assert list(head_probe((), output, features, (), 0)) == [HEAD_NAMES[0], HEAD_NAMES[3]]
    assert head_probe((), Output(jnp.zeros((8, 7))), batch, (), 0) == {}
