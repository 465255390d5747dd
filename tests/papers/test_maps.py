"""Attention maps as in the paper: what is kept, and what is drawn."""

import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Batch, Output
from emergo.core.errors import InputError
from emergo.papers.yuksel2026 import _stage_figure as figure
from emergo.papers.yuksel2026._chains import ChainRuns
from emergo.papers.yuksel2026._maps import AttentionMaps
from emergo.papers.yuksel2026._plots import map_plot
from emergo.training._config import next_evaluation

from .by_hand import STUDY, staged

PATTERN = jnp.asarray(
    np.random.default_rng(0).random((2, 3, 6, 6)), jnp.float32
)  # (sequence, head, query, key)
BATCH = Batch(jnp.zeros((2, 6), int), jnp.zeros((2, 4), int))


def measure(probe, step):
    output = Output(jnp.zeros(()), taps={"layers.0.pattern": PATTERN})
    return np.asarray(probe((), output, BATCH, (), jnp.int32(step))["attention_map"])


def test_maps_are_the_last_positions_against_each_other():
    maps = measure(AttentionMaps((0,)), 0)
    np.testing.assert_allclose(maps, np.asarray(PATTERN)[:, :, 2:, 2:].mean(0), rtol=1e-6)
    assert np.isnan(measure(AttentionMaps((0,)), 5)).all()


@pytest.mark.parametrize(
    "steps", [(0, 60, 300, 1000), (0, 70, 375, 1500), (100, 400, 1900), (0, 600, 3800, 6600)]
)
def test_each_of_the_papers_steps_has_one_evaluation(steps):
    """It is the first one at or after the step, at most 2% later."""
    evaluations = [0]
    while evaluations[-1] < 7000:
        evaluations.append(next_evaluation(evaluations[-1], 5))
    probe = AttentionMaps(steps)
    kept = [step for step in evaluations if np.isfinite(measure(probe, step)).all()]
    assert kept == [min(step for step in evaluations if step >= s) for s in steps]
    assert all(step <= 1.02 * s for step, s in zip(kept, steps, strict=True))


@pytest.mark.parametrize("steps", [(), (-1,), (True,)])
def test_steps_are_those_of_training(steps):
    with pytest.raises(InputError, match=r"AttentionMaps\.map_steps must be steps of training"):
        AttentionMaps(steps)


@pytest.fixture(scope="module")
def mapped():
    """Return two runs without maps, and one on the published teacher with maps at two steps."""
    (published,) = STUDY.replace(task__maps="published", seeds=1).runs
    maps = np.full((400, 3, 20, 20), np.nan)
    maps[[10, 399]] = 0.05
    return ChainRuns([*(staged(run) for run in STUDY.runs), staged(published, attention_map=maps)])


def test_the_run_with_maps_is_drawn_below(mapped):
    run = figure.mapped_run(mapped)
    assert run is mapped[2]
    assert figure.mapped_run(mapped.on("drawn")) is None
    assert len(figure.map_table(mapped[2])) == 2 * 3 * 20
    assert not mapped.table.filter(like="attention_map").size
    plots = (
        map_plot(mapped[0]),
        map_plot(mapped[0], run),
        map_plot(mapped[0], run, apart=True),
    )
    fewer, combined, apart = (len(plot.axes) for plot in plots)
    assert (combined - fewer, apart - fewer) == (2, 6)


def test_where_heads_look_at_the_papers_steps(mapped):
    """They leave group 1 at steps 200 and 500."""
    (check,) = figure.moment_checks(mapped.on("published"), (100, 300, 1000))
    assert check.holds
    assert check.name.startswith("published teacher: ")
    (other,) = figure.moment_checks(mapped.on("drawn"), (100, 150, 1000))
    assert not other.holds
    assert other.measured == ["1 1 1, 1 1 1, 1 2 3"] * 2
