r"""Linear regression with right-censored observations, by maximum likelihood.

The model is $z \sim N(x^\top\theta, s^2)$. An observed $z$ contributes its density to the
likelihood, a censored one the probability of a larger value. In Olsen's coordinates $(\gamma, \eta)
= (\theta/s, 1/s)$ the log-likelihood is concave (Olsen 1978), so Newton's method finds the maximum
from any start. Many weightings of the same data, such as bootstrap resamples, are fitted at once.
"""

import numpy as np
from jaxtyping import Bool, Float

_STEPS = 100  # of Newton's method; a maximum takes about 10
_OPEN = 1e-9  # ratio of extreme eigenvalues of the curvature below which a direction is open


def fit_censored(
    design: Float[np.ndarray, "runs terms"],
    z: Float[np.ndarray, " runs"],
    censored: Bool[np.ndarray, " runs"],
    weights: Float[np.ndarray, "fits runs"],
) -> tuple[Float[np.ndarray, "fits terms"], Float[np.ndarray, " fits"]]:
    """Fit a linear model to partly censored observations, once per row of weights.

    **Arguments:**

    - `design`: the regressors.
    - `z`: observations; lower bounds where `censored` is True.
    - `censored`: marks lower bounds.
    - `weights`: weights of the runs, one row per fit.

    **Returns:** the coefficients and the standard deviation of every fit; NaN if the data do not
    determine them. Then the likelihood has no maximum at finite coefficients, for example because
    all large values of a regressor are censored, or because a law fits all observations exactly.
    """
    from scipy.special import erfcx, log_ndtr  # here, because it is slow to import

    fits = weights.shape[0]
    terms = design.shape[1]
    # In standard units, a small eigenvalue of the curvature means that the data leave a direction
    # open.
    centre = np.append(0, design[:, 1:].mean(0))
    scales = np.append(1, design[:, 1:].std(0))
    design = (design - centre) / scales
    z_mean = z.mean()
    z_scale = z.std() or 1.0
    z = (z - z_mean) / z_scale
    # Start from least squares that treats bounds as observed, with a generous spread.
    start = np.linalg.lstsq(design, z, rcond=None)[0]
    spread = max(float(np.std(z - design @ start)), 1e-3)
    state = np.tile(np.append(start / spread, 1 / spread), (fits, 1))
    full = np.column_stack([design, -z])  # maps (gamma, eta) to x gamma - eta z
    count = np.sum(weights * ~censored, axis=1)

    def likelihood(state: np.ndarray, weights: np.ndarray) -> np.ndarray:
        margin = state @ full.T
        eta = np.maximum(state[:, -1:], 1e-300)
        observed = np.log(eta) - 0.5 * margin**2
        return np.sum(weights * np.where(censored, log_ndtr(margin), observed), axis=1)

    curvatures = np.zeros((fits, terms + 1, terms + 1))
    converged = np.zeros(fits, bool)
    for _ in range(_STEPS):
        left = np.flatnonzero(~converged)
        if not len(left):
            break
        here = state[left]
        weight = weights[left]
        margin = here @ full.T
        eta = here[:, -1]
        # Density over distribution function of the standard normal. The scaled complementary error
        # function neither underflows nor cancels for very negative margins.
        mills = np.sqrt(2 / np.pi) / erfcx(-margin / np.sqrt(2))
        first = weight * np.where(censored, mills, -margin)
        minus_second = weight * np.where(censored, mills * (mills + margin), 1.0)
        gradient = first @ full
        gradient[:, -1] += count[left] / eta
        curvature = np.einsum("fr,ri,rj->fij", minus_second, full, full)
        curvature[:, -1, -1] += count[left] / eta**2
        curvatures[left] = curvature
        try:
            move = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        except np.linalg.LinAlgError:
            ridge = 1e-12 * np.trace(curvature, axis1=1, axis2=2)[:, None, None] * np.eye(terms + 1)
            move = np.linalg.solve(curvature + ridge, gradient[..., None])[..., 0]
        # Halve a step until it keeps eta positive and does not lower the likelihood.
        value = likelihood(here, weight)
        least = value - 1e-12 * np.abs(value)
        size = np.ones(len(left))
        for _ in range(40):
            trial = here + size[:, None] * move
            worse = (trial[:, -1] <= 0) | ~(likelihood(trial, weight) >= least)
            if not worse.any():
                break
            size[worse] /= 2
        state[left] = here + size[:, None] * move
        # Newton's method converges quadratically to a maximum. If there is none, it runs away, and
        # its steps stay a sizeable part of the state.
        converged[left] = np.max(np.abs(move) / (1 + np.abs(state[left])), axis=1) < 1e-10
    eigenvalues = np.linalg.eigvalsh(np.nan_to_num(curvatures))
    closed = eigenvalues[:, 0] > _OPEN * eigenvalues[:, -1]
    scale = z_scale / state[:, -1]
    theta = state[:, :-1] * scale[:, None] / scales
    theta[:, 0] += z_mean - theta[:, 1:] @ centre[1:]
    undetermined = ~(converged & closed & (count > 0) & np.isfinite(theta).all(1))
    theta[undetermined] = np.nan
    scale[undetermined] = np.nan
    return theta, scale
