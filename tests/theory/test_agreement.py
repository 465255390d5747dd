"""Agreement of gradients: moments against those of the toy model on its task, and their growth
along the flow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erfinv

from emergo import theory
from emergo.core.errors import InputError
from emergo.models import ToyAttention, ToyParameters
from emergo.tasks import SingleLocation

SHARES = np.array([0.01, 0.5, 0.8, 0.95])
"""Of the plateau."""
OPTIMIZED = {
    "xla_backend_optimization_level": 2
}  # for programs that take longer to run than to compile


def on_the_flow(T, d, B, shares=SHARES):
    """The cell, the target, its spread, and the states of the exact flow at these shares of its
    plateau."""
    cell = theory.cells(T, d, B)
    target = theory.unit_columns(jax.random.key(1), d)
    path = theory.trajectory(cell, shares * float(theory.plateau(cell, "exact").time), "exact")
    gram = np.asarray(target.T @ target)
    return cell, target, float(np.trace(gram @ gram)) / d, path


@pytest.mark.slow
@pytest.mark.parametrize(("T", "d", "B"), [(32, 8, 1), (24, 12, 3)])
def test_signal_and_noise_are_those_of_the_toy_model(T, d, B):
    """Gradients of 30,000 single sequences: means over them are exact to about 1/√30,000 of a
    standard deviation."""
    cell, target, spread, path = on_the_flow(T, d, B)
    task = SingleLocation(T, d, burst=B)
    model = ToyAttention()
    count = 30_000
    truth = task.truth(jax.random.key(0))._replace(weights=target)

    def gradient(params, batch, i):
        one = jax.tree.map(lambda part: part[i][None], batch)
        return jax.grad(lambda p: task.loss(model.apply(p, one.inputs), one)[0])(params)

    @functools.partial(jax.jit, compiler_options=OPTIMIZED)
    def measured(w, logit, key):
        params = ToyParameters(
            jnp.where(truth.relevant, jnp.float32(logit), 0.0), w / d**0.5 * target
        )
        batch = task.batch(key, count, truth)
        each = jax.vmap(lambda i: gradient(params, batch, i))(jnp.arange(count))
        means = [(g.mean(0), g.var(0, ddof=1).sum()) for g in each]
        # The square of a mean of samples has the noise of the mean in it.
        return [(jnp.sum(mean**2) - noise / count, noise) for mean, noise in means]

    for i, (w, logit) in enumerate(zip(path.alignment, path.logit, strict=True)):
        derived = theory.gradient_moments(cell, w, logit, spread)
        for part, (signal, noise) in zip(
            derived, measured(w, logit, jax.random.key(i)), strict=True
        ):
            assert float(noise) == pytest.approx(float(part.noise), rel=0.04)
            # Four standard deviations of a squared mean, if all of the noise is along it.
            tolerance = 8 * (float(part.signal * part.noise) / count) ** 0.5
            assert float(signal) == pytest.approx(float(part.signal), abs=tolerance)


@pytest.mark.slow
def test_the_cosine_of_two_halves_is_the_ratio():
    """At T = 64, d = 8, n = 64. The mean cosine exceeds the ratio of expectations by up to 0.015,
    as halves differ in size."""
    n = 64
    (cell, target, spread, path) = on_the_flow(64, 8, 1)
    task = SingleLocation(64, 8)
    model = ToyAttention()
    truth = task.truth(jax.random.key(0))._replace(weights=target)

    @functools.partial(jax.jit, compiler_options=OPTIMIZED)
    def cosines(w, logit, keys):
        params = ToyParameters(jnp.where(truth.relevant, logit, 0.0), w / 8**0.5 * target)

        def one(key):
            batch = task.batch(key, n, truth)
            halves = [
                jax.tree.map(lambda part, i=i: part[i * n // 2 : (i + 1) * n // 2], batch)
                for i in range(2)
            ]
            first, second = (
                jax.grad(lambda p, h=half: task.loss(model.apply(p, h.inputs), h).mean())(params)
                for half in halves
            )
            return [
                jnp.sum(a * b) / jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))
                for a, b in zip(first, second, strict=True)
            ]

        return [values.mean() for values in jax.lax.map(one, keys)]

    for i, (w, logit) in enumerate(zip(path.alignment, path.logit, strict=True)):
        derived = theory.gradient_moments(cell, w, logit, spread)
        ours = [float(part.agreement(n)) for part in derived]
        np.testing.assert_allclose(
            cosines(w, logit, jax.random.split(jax.random.key(i), 500)), ours, atol=0.025
        )


@pytest.mark.parametrize(("T", "d", "B"), [(256, 64, 1), (4096, 64, 1), (4096, 256, 4)])
def test_it_grows_while_the_loss_is_flat(T, d, B):
    """In closed form: attention is (B/T) exp(erfinv²(t/t*)), the agreement follows from it. Until
    0.9 of the plateau the loss falls by less than a quarter, and the square of attention, which is
    what agreement goes by, grows twentyfold and more."""
    shares = np.array([0.02, 0.3, 0.6, 0.9])
    cell, _, _, path = on_the_flow(T, d, B, shares)
    derived = theory.gradient_moments(cell, path.alignment, path.logit)
    assert path.loss[-1] > 0.75 * 0.5
    attention = B / T * np.exp(erfinv(shares) ** 2)
    batch = 32
    leading = theory.leading_agreement(cell, attention, batch)
    for ours, part, tolerance in (
        (leading.attention, derived.attention, 0.15),
        (leading.values, derived.values, 0.35),
    ):
        ratio = part.signal / part.noise
        assert (np.diff(part.agreement(batch)) > 0).all()
        assert ratio[-1] > 5 * ratio[0]
        closed = 2 / batch / (1 / ours - 1)
        np.testing.assert_allclose(closed[:-1], ratio[:-1], rtol=tolerance)


def test_at_the_start():
    """Of the values 1/(dT), of the attention d/(kT), whatever w, as long as it is small."""
    cell = theory.cells(1000, 50)
    derived = theory.gradient_moments(cell, [1e-3, 1e-2], 0.0)
    np.testing.assert_allclose(
        derived.values.signal / derived.values.noise, 1 / (50 * 1000), rtol=0.01
    )
    np.testing.assert_allclose(
        derived.attention.signal / derived.attention.noise, 50 / (2 * 1000), rtol=0.01
    )
    assert theory.gradient_moments(cell, 0.0, 0.0).attention.agreement(32) == 0


def test_wrong_numbers():
    cell = theory.cells(32, 8)
    with pytest.raises(InputError, match="attention must be above 0 and at most 1, got 0"):
        theory.leading_agreement(cell, 0.0, 32)
    with pytest.raises(InputError, match="batch must be at least 2, got 1"):
        theory.leading_agreement(cell, 0.1, 1)
