"""The cross-entropy of tokens, from logits and from features with a readout."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as of_numbers

from emergo.core.contract import Output, Readout
from emergo.core.errors import InputError
from emergo.tasks import answer_tokens, token_losses
from emergo.tasks._cross_entropy import cross_entropy
from tests.jaxprs import operations_in


@settings(max_examples=30, deadline=None)
@given(
    of_numbers(np.float64, (3, 5), elements=st.floats(-50, 50)),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_cross_entropy_equals_log_softmax(logits, target):
    """In float64: values, first and second derivatives, with a class of logit -inf."""
    with jax.enable_x64(True):
        target = jnp.array(target)
        weights = jnp.array([1.0, -2.0, 0.5])
        whole = jnp.asarray(logits)
        direction = jnp.ones((3, 5)).at[0, 0].set(3.0)
        padded = jnp.concatenate([whole, jnp.full((3, 1), -jnp.inf)], 1)

        def ours(logits):
            return cross_entropy(logits, target)

        def plainly(logits):
            return -jax.nn.log_softmax(logits)[jnp.arange(3), target]

        def derivatives(loss):
            gradient = jax.grad(lambda logits: jnp.sum(weights * loss(logits)))
            twice = jax.jvp(gradient, (whole,), (direction,))[1]
            return loss(padded), jax.jvp(loss, (whole,), (direction,))[1], gradient(padded), twice

        for one, other in zip(derivatives(ours), derivatives(plainly), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_cross_entropy_of_a_confident_answer_is_precise():
    """In fp32 the right logit is larger by 12, so the loss is nearly exp(-12)."""
    loss = cross_entropy(jnp.array([[500.0, 488.0]]), jnp.array([0]))
    np.testing.assert_allclose(loss, np.log1p(np.exp(-12)), rtol=0.02)  # one rounding of 1 + 6e-6


def drawn(shape, classes, width=3, biased=True):
    """Return features of this shape, a readout, and the right classes, in the default precision."""
    generator = np.random.default_rng(0)
    features = jnp.asarray(2 * generator.standard_normal((*shape, width)))
    bias = jnp.asarray(generator.standard_normal(classes)) if biased else None
    readout = Readout(jnp.asarray(generator.standard_normal((width, classes))), bias)
    return features, readout, jnp.asarray(generator.integers(classes, size=shape))


def deferred(features: Any, readout: Any) -> Output:
    return Output(None, features=features, readout=readout)


@settings(max_examples=6)
@given(
    rows=st.integers(1, 11),
    answers=st.sampled_from([(), (1,), (3,)]),
    classes=st.integers(1, 7),
    biased=st.booleans(),
)
def test_losses_without_logits_equal_losses_of_logits(rows, answers, classes, biased):
    """In float64: values and gradients, for numbers of rows that chunks do and do not divide."""
    with jax.enable_x64(True):
        features, readout, target = drawn((rows, *answers), classes, biased=biased)
        weights = jnp.arange(1.0, 1.0 + target.size).reshape(target.shape)

        def graded(output_of: Any) -> Any:
            def loss(features: Any, readout: Any) -> Any:
                output = output_of(features, readout)
                losses = token_losses(output, target)
                return jnp.sum(weights * losses), (losses, answer_tokens(output))

            return jax.grad(loss, argnums=(0, 1), has_aux=True)(features, readout)

        got, expected = jax.jit(
            lambda: (graded(deferred), graded(lambda x, readout: Output(readout(x))))
        )()
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_large_bias_in_padded_rows_is_harmless():
    """Rows of zeros fill the last chunk. Their logits are the bias, whose exponential overflows."""
    features, readout, target = drawn((5,), 2)
    readout = readout._replace(bias=jnp.array([1000.0, 900.0]))
    gradient = jax.grad(lambda x: jnp.sum(token_losses(deferred(x, readout), target)))(features)
    assert np.all(np.isfinite(gradient))


def test_losses_without_logits_are_precise_in_fp32():
    """A confident answer: the right logit is larger by 12, so the loss is nearly exp(-12)."""
    readout = Readout(jnp.array([[500.0, 488.0]]))
    loss = token_losses(deferred(jnp.ones((1, 1)), readout), jnp.array([0]))
    np.testing.assert_allclose(loss, np.log1p(np.exp(-12)), rtol=0.02)  # one rounding of 1 + 6e-6


@functools.cache
def operations_of_a_language_model() -> Any:
    """Return the operations of the gradient of three runs with 64 x 256 tokens of 4,096 in bf16."""
    runs, rows, width, classes = 3, (64, 256), 512, 4096

    def loss(features: Any, weight: Any, target: Any) -> Any:
        output = deferred(features, Readout(weight))
        return jnp.mean(token_losses(output, target)) + jnp.mean(answer_tokens(output) == target)

    def of(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((runs, *shape), dtype)

    arrays = (of(jnp.bfloat16, *rows, width), of(jnp.bfloat16, width, classes))
    graded = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))
    return list(operations_in(jax.make_jaxpr(graded)(*arrays, of(jnp.int32, *rows))))


def test_logits_of_the_whole_batch_never_exist():
    sizes = [
        (variable.aval.shape, variable.aval.size)
        for equation in operations_of_a_language_model()
        for variable in equation.outvars
        if 4096 in variable.aval.shape
    ]
    # The gradient of the weight is one of these arrays, the logits of a chunk are another.
    assert (3, 512, 4096) in dict(sizes)
    assert max(size for _, size in sizes) <= 3 * 64 * 256 * 4096 / 4


def test_products_have_operands_in_bf16_and_results_in_fp32():
    products = [e for e in operations_of_a_language_model() if e.primitive.name == "dot_general"]
    # The readout of losses, of answers and of the backward pass, and two gradients.
    assert len(products) == 5
    for product in products:
        assert {variable.aval.dtype.name for variable in product.invars} == {"bfloat16"}
        assert product.outvars[0].aval.dtype == np.float32


def test_a_stack_of_runs_has_the_losses_of_its_runs():
    features, readout, target = drawn((5, 3), 6)
    runs = [(features, readout), jax.tree.map(lambda x: 1.5 * x[::-1], (features, readout))]

    def loss(features: Any, readout: Any) -> Any:
        return jnp.sum(token_losses(deferred(features, readout), target) ** 2)

    graded = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    together = jax.jit(jax.vmap(graded))(*jax.tree.map(lambda *x: jnp.stack(x), *runs))
    for i, run in enumerate(runs):
        alone = graded(*run)
        for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            # Sums of a few products in fp32, in another order.
            np.testing.assert_allclose(one[i], other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [lambda o: token_losses(o, jnp.array([0])), answer_tokens])
def test_an_output_without_answers_is_refused(function):
    with pytest.raises(InputError, match="needs a value, or features and a readout"):
        function(Output(None))
