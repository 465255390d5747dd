"""Early stopping as a regulariser: bias and variance of each stage against simulations."""

import numpy as np

from emergo.tasks import Groups
from emergo.theory import incremental

GROUPS = Groups((1, 1, 1))
STRENGTHS = np.asarray(GROUPS.strengths)
LENGTH = 6
TOKENS = 8
NOISE = 3.0


def draw(samples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw inputs, targets, and the teacher's map of every position."""
    maps = np.zeros((LENGTH, TOKENS, TOKENS))
    for j, strength in enumerate(STRENGTHS):
        maps[j] = strength * np.linalg.qr(rng.normal(size=(TOKENS, TOKENS)))[0]
    x = rng.normal(size=(samples, LENGTH, TOKENS))
    y = np.einsum("nib,iab->na", x, maps) + NOISE * rng.normal(size=(samples, TOKENS))
    return x, y, maps


def trained(samples: int, seed: int, steps: int = 3000) -> np.ndarray:
    """Return the loss above the teacher's every 10 steps of gradient descent with three heads."""
    rng = np.random.default_rng(seed)
    x, y, maps = draw(samples, rng)
    flat = x.reshape(samples, -1)
    covariance = flat.T @ flat / samples
    signal = np.einsum("na,nib->iab", y, x) / samples
    values = np.zeros((3, TOKENS, TOKENS))
    logits = 1e-3 * rng.normal(size=(3, LENGTH))
    losses = []
    for step in range(steps):
        attention = np.exp(logits)
        attention /= attention.sum(1, keepdims=True)
        fitted = np.einsum("kab,ki->iab", values, attention)
        if step % 10 == 0:
            losses.append(0.5 * np.sum((maps - fitted) ** 2))
        wide = fitted.transpose(1, 0, 2).reshape(TOKENS, -1) @ covariance
        pull = signal - wide.reshape(TOKENS, LENGTH, TOKENS).transpose(1, 0, 2)
        on_attention = np.einsum("iab,kab->ki", pull, values)
        mean = (attention * on_attention).sum(1, keepdims=True)
        values += 0.05 * np.einsum("iab,ki->kab", pull, attention)
        logits += 0.05 * LENGTH * attention * (on_attention - mean)
    return np.array(losses)


def test_each_stage_has_the_bias_and_variance_of_least_squares():
    samples = 60
    derived = incremental.stage_losses(GROUPS, TOKENS, samples, NOISE)
    rng = np.random.default_rng(0)
    found = np.zeros((400, 4))
    for row in found:
        x, y, maps = draw(samples, rng)
        row[0] = 0.5 * np.sum(maps**2)
        for k in (1, 2, 3):
            fitted = np.linalg.lstsq(x[:, :k].reshape(samples, -1), y, rcond=None)[0]
            off = maps[:k].transpose(0, 2, 1).reshape(-1, TOKENS) - fitted
            row[k] = 0.5 * (np.sum(off**2) + np.sum(maps[k:] ** 2))
    error = found.std(0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(0) - derived.bias - derived.variance) < 4 * error + 1e-9)


def test_less_data_means_an_earlier_stage():
    best = [incremental.stage_losses(GROUPS, TOKENS, n, NOISE).best for n in (20, 40, 80, 160)]
    assert best == [0, 1, 2, 3]
    few = incremental.stage_losses(GROUPS, TOKENS, 20, NOISE)
    assert few.variance[3] == np.inf, "24 features cannot be fitted to 20 samples"


def test_stopping_early_finds_the_stage_that_the_data_can_afford():
    """The best loss along training is near the least of the stages; without stopping, little data
    ends at twice of it."""
    curves = {n: [trained(n, seed) for seed in range(4)] for n in (40, 160)}
    best = {n: np.median([curve.min() for curve in some]) for n, some in curves.items()}
    for n, loss in best.items():
        derived = incremental.stage_losses(GROUPS, TOKENS, n, NOISE)
        assert 0.7 < loss / np.min(derived.bias + derived.variance) < 1.3
    when = {n: np.median([curve.argmin() for curve in some]) for n, some in curves.items()}
    assert when[40] < when[160]
    assert np.median([curve[-1] / curve.min() for curve in curves[40]]) > 1.8
