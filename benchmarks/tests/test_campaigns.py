"""Campaigns: their parts, and the command that trains, resumes and records them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import emergo as em
from benchmarks import campaigns, exponents, recall_dropped, small_campaigns, text_repetition
from benchmarks.campaign_parts import FewQueries, PatientWhenStuck, ScaledLocation, SharedSigmoid

EVERY = {
    **campaigns.CAMPAIGNS,
    **recall_dropped.CAMPAIGNS,
    **small_campaigns.CAMPAIGNS,
    **{f"text, {name}": make for name, make in text_repetition.CAMPAIGNS.items()},
    **{
        name: lambda make=make: {label: part.study for label, part in make().items()}
        for name, make in exponents.CAMPAIGNS.items()
    },
}


@pytest.mark.parametrize("name", EVERY)
def test_a_campaign_can_be_built_and_has_three_seeds(name):
    studies = EVERY[name]().values()
    assert all(study.runs for study in studies)  # raises if two cells are the same run
    few = 2 if "screen" in name else 3  # confirmed by other campaigns with further seeds
    assert min(len(study.seeds) for study in studies) >= few


def test_a_tiny_study_has_one_run_of_few_steps():
    for study in campaigns.coupled_circuits().values():
        (run,) = campaigns.tiny(study).runs
        assert run.config.steps == campaigns.TINY["steps"]


def test_the_command_goes_on_and_records_each_run_once(tmp_path, capsys):
    """The study is that of an example in the documentation, whose program is compiled already."""
    task = em.SingleLocation(length=4, dim=2)
    model = em.Transformer(layers=1, heads=1, width=4, mlp=False)
    training = {"steps": 50, "batch": 8, "n_test": 16, "precision": "fp32"}
    adam = em.Optimizer("adam", learning_rate=0.02)
    study = em.Study(task, model, adam, grid={"dim": [2, 3]}, seeds=1, **training)
    records = tmp_path / "records"
    for seconds, count in ((0, 0), (600, 2), (600, 2)):
        words = ["train", "small", str(tmp_path / "work"), str(seconds), str(records)]
        campaigns.main({"small": lambda: {"all": study}}, words, "")
        assert f"all: {count} of 2 runs" in capsys.readouterr().out
    campaigns.main({"small": lambda: {"all": study}}, ["summary", "small", str(records)], "")
    assert "all: 2 of 2 runs" in capsys.readouterr().out
    runs = campaigns.found(study, campaigns.read_records(records))
    assert sorted(runs.table["dim"]) == [2, 3]


def stuck_at(losses):
    """Return the evaluations after which the schedule has its value `stuck`."""
    rule = PatientWhenStuck("loss", stuck=1.0, patience=4, rest=10)

    def step(state, loss):
        state = rule.update(state, {"loss": loss})
        return state, rule.value(0, state)

    _, values = jax.lax.scan(step, rule.start(), jnp.asarray(losses, jnp.float32))
    return np.flatnonzero(np.asarray(values)).tolist()


FLAT = [5.0] * 8
UP = np.linspace(5.0, 8.0, 20).tolist()
BACK = np.linspace(8.0, 5.0, 30).tolist()


def test_the_patient_schedule_repeats_through_a_rise_until_half_of_it_is_gone():
    stuck = stuck_at(FLAT + UP + BACK)
    assert stuck[0] == 3
    end = next(i for i in range(stuck[0], len(FLAT + UP + BACK)) if i not in stuck)
    # Half of the logarithm is gone 16 evaluations after the top; the mean is three late.
    assert 28 + 16 <= end <= 28 + 21


def test_the_patient_schedule_ends_when_the_metric_falls_and_then_rests():
    falling = np.linspace(5.0, 3.0, 10).tolist()
    stuck = stuck_at(FLAT + falling + [3.0] * 20)
    gap = np.flatnonzero(np.diff(stuck) > 1)
    assert 8 <= stuck[gap[0]] <= 14
    assert stuck[gap[0] + 1] - stuck[gap[0]] > 10


def test_a_moving_metric_is_never_stuck():
    assert stuck_at(5.0 * 0.8 ** np.arange(30)) == []


def test_scaled_features_and_targets():
    task = em.SingleLocation(6, 3, position="random", indicator=True)
    scaled = ScaledLocation(
        *(6, 3), position="random", indicator=True, tokens=2.0, marks=3.0, targets=0.5
    )
    key = jax.random.key(0)
    plain, other = (one.batch(key, 5, one.truth(key)) for one in (task, scaled))
    np.testing.assert_allclose(other.inputs[..., 0], 3 * plain.inputs[..., 0])
    np.testing.assert_allclose(other.inputs[..., 1:], 2 * plain.inputs[..., 1:])
    np.testing.assert_allclose(other.target, 0.5 * plain.target)


@pytest.mark.parametrize("count", [1, 4])
def test_queries_are_drawn_from_the_repeated_tokens(count):
    task = FewQueries(pairs=2, vocabulary=30, repeat=1.0, tokens=count)
    queries = np.asarray(task.batch(jax.random.key(0), 200, ()).inputs[:, -1])
    assert set(queries) == set(range(count))


def test_shared_sigmoid_weights_sum_to_one():
    scores = jax.random.normal(jax.random.key(0), (2, 3, 5))
    visible = jnp.arange(5) < 4
    weights = SharedSigmoid().weights(None, scores, visible)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)
    assert (weights[..., 4] == 0).all()
    assert (jnp.diff(weights[0, 0, jnp.argsort(scores[0, 0, :4])]) > 0).all()
