"""A probe that trains predictors of restricted context before the run that they are compared
with."""

import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.models import MinimalAttention
from emergo.papers.yuksel2026._contexts import ContextPredictors
from emergo.study.description import build_run
from emergo.tasks import Groups, MarkovChain
from emergo.training import Config, Optimizer, Run, probe_curves, train

TASK = MarkovChain(Groups((1, 1), importance=2.0), vocabulary=5, generated=4)
LENGTH = TASK.spec.length
ADAMW = Optimizer("adamw", 0.2, clip=1.0, weight_decay=0.01)
BASE = Config(TASK, MinimalAttention(heads=2, scale=1e-3), ADAMW, 32, "fp32", 20, None, n_test=64)
RUN = Run(BASE.replace(probes=(ContextPredictors((1, LENGTH)),)), 0)


@pytest.fixture(scope="module")
def curves():
    (result,) = train([RUN])
    assert result.curves is not None
    return result.curves


@pytest.mark.slow
def test_the_predictor_that_sees_all_ends_where_the_run_ends(curves):
    """It has the run's data and start. A predictor that sees less ends elsewhere."""
    assert curves["kl_contexts"].shape == (5, 2)
    less, all = curves["kl_contexts"].T
    assert all[0] > 0.1
    assert all[-1] == pytest.approx(0, abs=1e-4)  # two programs, twenty steps: near rounding
    assert less[-1] > 0.01


@pytest.mark.slow
def test_the_run_itself_is_as_without_them(curves):
    (alone,) = train([Run(BASE, 0)])
    assert alone.curves is not None
    np.testing.assert_allclose(alone.curves["loss"], curves["loss"], rtol=1e-4)
    assert "kl_contexts" not in alone.curves


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_what_it_is_compared_with(curves, tmp_path):
    def stop(now):
        if now.steps >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([RUN], checkpoint=tmp_path, checkpoint_seconds=0, progress=stop)
    (again,) = train([RUN], checkpoint=tmp_path)
    assert again.curves is not None
    np.testing.assert_array_equal(again.curves["kl_contexts"], curves["kl_contexts"])


def test_identity():
    """The probe changes the identity of a run, and is restored from plain data."""
    other = Run(BASE.replace(probes=(ContextPredictors((1, 2)),)), 0)
    assert len({RUN.identity, other.identity, Run(BASE, 0).identity}) == 3
    assert build_run(RUN.describe()) == RUN
    assert probe_curves(RUN.config) == ("kl_contexts",)


@pytest.mark.parametrize("contexts", [(), (0, 2), (True,), (1.5,)])
def test_contexts_are_numbers_of_tokens(contexts):
    with pytest.raises(InputError, match="contexts must be numbers of tokens, each at least 1"):
        ContextPredictors(contexts)


@pytest.mark.parametrize(
    ("changes", "contexts", "message"),
    [
        ({"model__layers": 2}, (1,), "need a model of one layer that sees the whole context"),
        ({"model__context": 2}, (1,), "need a model of one layer that sees the whole context"),
        ({}, (1, 6), r"must be numbers from 1 to 5 for this task, got \(1, 6\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, contexts, message):
    probe = ContextPredictors(contexts)
    with pytest.raises(InputError, match=message):
        train([Run(BASE.replace(probes=(probe,), **changes), 0)])
