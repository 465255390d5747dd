"""Figure 10 of yuksel2026: the gradient flow in stages."""

import numpy as np
import pytest

from emergo.papers.yuksel2026 import fig10

SETTINGS = fig10.FIGURE.presets["smoke"]


@pytest.fixture(scope="module")
def logit():
    return fig10.integrate("logit", SETTINGS)


@pytest.mark.slow
def test_the_flow_learns_one_group_after_another(logit):
    checks = {
        check.name.removeprefix("logit flow: "): check for check in fig10.checks_of(logit, SETTINGS)
    }
    for name in (
        "seeds with 3 stages",
        "identical heads stay identical, and their loss at the end",
    ):
        assert checks[name].holds, name
    np.testing.assert_allclose(
        checks["loss on the plateaus, mean over seeds"].measured, fig10.LEVELS[:-1], rtol=0.05
    )
    assert (logit.path.loss[:-1, -1] < 0.05 * fig10.LEVELS[0]).all()


@pytest.mark.slow
def test_its_checks_can_fail(logit):
    """They fail for a flow that stops on its first plateau with uniform heads."""
    short = int(np.searchsorted(logit.path.time, 1.0))
    start = np.repeat(logit.path.attention[:, :1], short, 1)
    path = logit.path._replace(
        time=logit.path.time[:short], loss=logit.path.loss[:, :short], attention=start
    )
    assert not any(
        check.holds for check in fig10.checks_of(fig10.FlowRuns("logit", path), SETTINGS)
    )
