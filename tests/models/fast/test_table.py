"""The table of optimised paths: they compute what `apply` computes, for every option they list."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emergo as em
from emergo.core.contract import Spec, Tap
from emergo.core.pytree import fields
from emergo.models import ChainTransformer, MinimalAttention, Model, ToyAttention, Transformer
from emergo.models.fast import (
    PATHS,
    VARIABLE,
    FastPath,
    Rate,
    Size,
    SubsetOf,
    find_path,
)

EXAMPLES = 10
COUNT = 3
LENGTH = 6
VOCABULARY = 5
# Small numbers for options whose values are unlimited. A width of 32 is enough for the folded
# attention of a CPU.
SIZES: dict[str, tuple[Any, ...]] = {
    "layers": (1, 2, 3),
    "heads": (1, 2),
    "width": (8, 32),
    "mlp_factor": (2,),
    "hidden": (3,),
    "window": (None, 1, 3),
    "top_k": (None, 2),
    "dropout_every": (None, 2),
}
PER_RUN: dict[str, tuple[Any, ...]] = {"context": (None, 1, 3), "scale": (0.5,)}
by_name = pytest.mark.parametrize("path", PATHS, ids=lambda path: Path(path.name).stem)
ANSWERS = {"last": None, "several": 2}


def values_of(name: str, allowed: Any) -> tuple[Any, ...]:
    """Return values that a path lists for an option."""
    if isinstance(allowed, Size):
        return SIZES[name]
    if isinstance(allowed, Rate):
        return (0.0, 0.3)
    if isinstance(allowed, SubsetOf):
        some = range(len(allowed.names) + 1)
        return tuple(subset for k in some for subset in itertools.combinations(allowed.names, k))
    return allowed


def cases(path: FastPath) -> st.SearchStrategy[dict[str, Any]]:
    """Any combination of the values that a path lists."""
    choices = {name: values_of(name, allowed) for name, allowed in path.options.items()}
    choices |= {name: PER_RUN[name] for name in path.per_run}
    choices |= {"answers": tuple(ANSWERS[read] for read in path.reads), "stack_size": (0, 4)}
    choices |= {"dropped": (True, False) if path.dropout else (False,), "at_step": (1, 2)}
    return st.fixed_dictionaries(
        {name: st.sampled_from(values) for name, values in choices.items()}
    )


def supported(path: FastPath) -> tuple[Model, Spec]:
    """Return a model and sizes that a path supports."""
    first = {name: values_of(name, allowed)[0] for name, allowed in path.options.items()}
    answers = ANSWERS[path.reads[0]]
    return path.model(**first), Spec(LENGTH, VOCABULARY, VOCABULARY, answers=answers)


def drawn_inputs(model: Model, spec: Spec) -> jax.Array:
    generator = np.random.default_rng(0)
    if model.only_tokens:
        return jnp.asarray(generator.integers(VOCABULARY, size=(COUNT, LENGTH)), jnp.int32)
    return jnp.asarray(generator.standard_normal((COUNT, LENGTH, spec.inputs)))


def drawn_params(model: Model, spec: Spec) -> Any:
    """Draw parameters away from the start, whose zeros and symmetries could hide a mistake."""
    generator = np.random.default_rng(1)
    structure = jax.eval_shape(lambda: model.init(jax.random.key(0), spec))
    return jax.tree.map(lambda x: jnp.asarray(0.4 * generator.standard_normal(x.shape)), structure)


def weighted_sum(output: em.Output) -> jax.Array:
    """Return a number that depends on every entry of an output, each with a different weight.

    Arrays are scaled to at most 1, because the sine of a large number depends on its last digits.
    """
    generator = np.random.default_rng(2)
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(output):
        scale = jax.lax.stop_gradient(jnp.maximum(jnp.abs(leaf).max(), 1))
        total += jnp.sum(jnp.sin(leaf / scale) * generator.standard_normal(leaf.shape))
    return total


def largest_difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference between two pytrees, relative to the largest entry."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    assert all(one.shape == other.shape for one, other in pairs)
    scale = max(float(jnp.abs(other).max()) for _, other in pairs)
    return max(float(jnp.abs(one - other).max()) for one, other in pairs) / max(scale, 1e-3)


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
@by_name
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_path_equals_apply_for_all_listed_options(path: FastPath, data: Any) -> None:
    """Outputs and gradients agree in float64, on a CPU and in the code that a GPU runs."""
    options = data.draw(cases(path))
    answers, stack_size, dropped, step = (
        options.pop(name) for name in ("answers", "stack_size", "dropped", "at_step")
    )
    model = path.model(**options)
    spec = Spec(LENGTH, VOCABULARY, VOCABULARY, answers=answers)
    assert find_path(model, spec) is path
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        inputs = drawn_inputs(model, spec)
        params = drawn_params(model, spec)
        tap = Tap(spec, jax.random.key(3) if dropped else None, jnp.int32(step))

        def graded(forward: Any) -> Any:
            def loss(params: Any) -> Any:
                output = forward(params)
                return weighted_sum(output), output

            return jax.jit(jax.grad(loss, has_aux=True))(params)

        gradient, output = graded(lambda p: path.forward(model, p, inputs, tap, stack_size))
        expected_gradient, expected = graded(lambda p: model.apply(p, inputs, tap))
        assert output.value.dtype == jnp.float64
        assert largest_difference(output, expected) < 1e-9
        assert largest_difference(gradient, expected_gradient) < 1e-8


@by_name
def test_every_field_of_a_model_is_listed(path: FastPath) -> None:
    listed = {*path.options, *path.per_run}
    assert {field.name for field in fields(path.model())} == listed


class Doubled(Transformer):
    """A subclass that overrides `apply`."""

    def apply(self, params: Any, inputs: Any, tap: Any = em.Tap()) -> em.Output:
        output = super().apply(params, inputs, tap)
        return output._replace(value=2 * output.value)


class WithOption(Transformer):
    """A subclass that adds a field."""

    gain: float = 1.0


@pytest.mark.parametrize(
    "model",
    [Doubled(), WithOption(), ToyAttention(), type("Same", (MinimalAttention,), {})()],
    ids=lambda model: type(model).__name__,
)
def test_other_classes_run_apply(model: Model) -> None:
    assert find_path(model, Spec(LENGTH, VOCABULARY, VOCABULARY)) is None


@by_name
def test_unlisted_fields_and_values_run_apply(path: FastPath) -> None:
    """A new field, and a new value of an option, both run `apply` until they are listed."""
    model, spec = supported(path)
    assert path.supports(model, spec)
    for name, allowed in path.options.items():
        others = {key: value for key, value in path.options.items() if key != name}
        assert not dataclasses.replace(path, options=others).supports(model, spec)
        narrowed = dict(path.options) | {name: ()}
        assert not dataclasses.replace(path, options=narrowed).supports(model, spec)
        assert "an unlisted value" not in allowed
        assert -1 not in allowed


def test_a_path_supports_tasks_that_read_as_many_positions() -> None:
    several = Spec(LENGTH, VOCABULARY, VOCABULARY, answers=2)
    assert find_path(Transformer(), several) is None
    assert find_path(ChainTransformer(), several) is not None
    language = Transformer(norm="pre", mask="causal")
    for_one, for_several = (
        find_path(language, s) for s in (several._replace(answers=None), several)
    )
    assert for_one is not None
    assert for_several is not None
    assert for_one is not for_several


def test_paths_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec(LENGTH, VOCABULARY, VOCABULARY)
    assert find_path(Transformer(), spec) is not None
    monkeypatch.setenv(VARIABLE, "off")
    assert find_path(Transformer(), spec) is None
