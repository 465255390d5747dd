"""Parameters of trained models: kept at chosen steps, without padding, saved and loaded."""

import json
import os

import jax
import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.training import read_start
from emergo.training._config import next_evaluation

from .own import BASE, Echo, make_flat, run_of
from .untyped import (
    Clamp,
    Config,
    EquinoxModel,
    Optimizer,
    Recall,
    Run,
    SingleLocation,
    Switch,
    Trained,
    Transformer,
    When,
    load_parameters,
    log_steps,
    save_parameters,
    train,
)

TASK = SingleLocation(4, 5, position="random", indicator=True)
PADDED = BASE.replace(task=TASK, model=Transformer(layers=1, heads=2, width=4, mlp=False), steps=60)
RUNS = [Run(PADDED.replace(task__dim=dim), seed) for seed, dim in enumerate((5, 2))]


def kept_of(runs, keep, **options):
    kept = []
    results = train(runs, keep=keep, snapshot=kept.append, **options)
    return results, kept


@pytest.fixture(scope="module")
def padded():
    """Two runs of two dims in one program."""
    return kept_of(RUNS, [0, 30], n_parallel=2)


def test_parameters_are_kept_at_the_chosen_steps_and_at_the_end(padded):
    for run in RUNS:
        assert [trained.step for trained in padded[1] if trained.run == run] == [0, 50, 60]
    _, nothing = kept_of([run_of(steps=7)], None)
    assert nothing == []
    _, ends = kept_of([run_of(steps=7)], [])
    assert [trained.step for trained in ends] == [7]


def test_parameters_have_the_shapes_of_the_run_alone(padded):
    for trained in padded[1]:
        config = trained.run.config
        alone = config.model.init(jax.random.key(0), config.task.spec)
        assert jax.tree.map(np.shape, trained.params) == jax.tree.map(np.shape, alone)
        assert trained.params.readout.weight.shape == (4, config.task.dim)


def test_the_parameters_of_step_0_are_those_of_the_run_alone(padded):
    (beside,) = (t for t in padded[1] if t.run == RUNS[1] and t.step == 0)
    key = jax.random.fold_in(jax.random.key(RUNS[1].seed), 1)
    alone = RUNS[1].config.model.init(key, RUNS[1].config.task.spec)
    for one, two in zip(jax.tree.leaves(beside.params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_the_forward_pass_gives_the_test_loss_of_that_step(padded):
    """For the run that is padded."""
    curves = padded[0][1].curves
    config = RUNS[1].config
    for trained in (trained for trained in padded[1] if trained.run == RUNS[1]):
        batch = trained.batch(config.n_test)
        loss = config.task.loss(trained.forward(batch.inputs), batch).mean()
        assert float(loss) == pytest.approx(
            curves["loss"][curves["step"] == trained.step][0], rel=1e-4
        )


def test_attention_maps(padded):
    maps = padded[1][-1].attention_maps(3)
    assert maps.shape == (1, 3, 2, 4, 4)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    trained = padded[1][-1]
    assert list(trained.forward(trained.batch(3), ["*.scores"]).taps) == ["layers.0.scores"]


def test_a_file_gives_back_what_was_saved(padded, tmp_path):
    trained = padded[1][-1]
    path = tmp_path / "parameters.safetensors"
    save_parameters(path, trained)
    again = load_parameters(path, trained.run)
    assert (again.run, again.step) == (trained.run, trained.step)
    assert jax.tree.structure(again.params) == jax.tree.structure(trained.params)
    for one, two in zip(
        jax.tree.leaves(again.params), jax.tree.leaves(trained.params), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    batch = trained.batch(4)
    np.testing.assert_array_equal(again.forward(batch).value, trained.forward(batch).value)
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        assert {"embed.weight", "layers.0.query.weight", "readout.bias"} <= set(file.keys())


def test_dictionaries_and_modules_have_names_too(tmp_path):
    from safetensors import safe_open

    for model, names in (
        (BASE.model, {"scores", "weights"}),
        (EquinoxModel(make_flat), {"linear.weight", "linear.bias"}),
    ):
        run = run_of(model=model, steps=6)
        _, (trained,) = kept_of([run], [])
        save_parameters(tmp_path / "file", trained)
        with safe_open(tmp_path / "file", "numpy") as file:
            assert {name for name in file.keys() if not name.startswith("state/")} == names  # noqa: SIM118
        again = load_parameters(tmp_path / "file", run)
        batch = trained.batch(4)
        np.testing.assert_array_equal(again.forward(batch).value, trained.forward(batch).value)


def test_unreadable_parameters_are_named(padded, tmp_path):
    trained = padded[1][0]
    path = tmp_path / "parameters.safetensors"
    save_parameters(path, trained)
    with pytest.raises(InputError, match="it holds the parameters of another run"):
        load_parameters(path, Run(trained.run.config, 99))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"parameters\.safetensors: cannot be read as parameters"):
        load_parameters(path, trained.run)
    with pytest.raises(InputError, match="cannot be read as parameters"):
        load_parameters(tmp_path / "none", trained.run)


def test_parameters_that_do_not_fit_into_memory_are_not_read(padded, tmp_path):
    """A sparse file takes no room on the disk."""
    array = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    header = json.dumps({"weight": array}).encode()
    path = tmp_path / "large.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 2**42)
    for read in (lambda: load_parameters(path, padded[1][0].run), lambda: read_start(path)):
        with pytest.raises(InputError, match=r"bytes; at most"):
            read()


def test_schedules_and_interventions_have_their_values_at_the_step():
    """The gain changes, and the clamp ends."""
    task = Echo(4, 3, gain=Switch(1.0, 3.0, at=6))
    run = run_of(
        task=task, interventions=(Clamp(0, until=8),), optimizer=Optimizer("sgd", 0.05), steps=10
    )
    (result,), kept = kept_of([run], [0, 10])
    for trained in kept:
        batch = trained.batch(run.config.n_test)
        loss = run.config.task.loss(trained.forward(batch.inputs), batch).mean()
        assert float(loss) == pytest.approx(
            result.curves["loss"][result.curves["step"] == trained.step][0], rel=1e-4
        )
    np.testing.assert_allclose(kept[0].attention_maps(2), 0.25)
    assert np.ptp(kept[-1].attention_maps(2)) > 0.01


class WithTestSet(Echo):
    def at_test(self):
        return self


def test_triggers_are_unknown_after_training():
    """Their state is not kept with the parameters, so a forward pass would be a guess."""
    params = BASE.model.init(jax.random.key(0), BASE.task.spec)
    clamped = run_of(interventions=(Clamp(0, strength=When("error", below=0.5, before=1.0)),))
    with pytest.raises(
        InputError,
        match="measurements, which are not kept with its parameters",
    ):
        Trained(clamped, 5, params).attention_maps(2)
    noisy = run_of(task__noise=When("error", below=0.5, before=0.1))
    assert Trained(noisy, 5, params).batch(2).target.shape == (2, 3)
    gained = run_of(task=WithTestSet(4, 3, gain=When("error", below=0.5, before=0.1)))
    with pytest.raises(InputError, match="measurements, which are not kept"):
        Trained(gained, 5, params).batch(2)


def test_log_steps():
    assert log_steps(1000) == (0, 25, 50, 100, 200, 400, 800, 1000)
    assert log_steps(60, 5) == (0, 5, 10, 20, 40, 60)
    assert log_steps(25) == (0, 25)
    assert log_steps(10) == (0, 10)
    assert next_evaluation(0) == 25


RECALL = Recall(pairs=2, vocabulary=6)
LOOKED_INTO = Transformer(layers=2, heads=2, width=8, norm="pre", mask="causal")


def looked_into(**changes):
    """An untrained model, and two batches of inputs."""
    run = Run(Config(RECALL, LOOKED_INTO, precision="fp32", **changes), seed=0)
    params = LOOKED_INTO.init(jax.random.key(0), RECALL.spec)
    inputs = [RECALL.batch(jax.random.key(i), 4).inputs for i in range(2)]
    return Trained(run, 100, params), *inputs


def test_patching_replaces_a_head_or_a_position():
    trained, x, source = looked_into()
    own = trained.forward(x).value
    other = trained.forward(source, ["layers.0.mixed", "layers.*.output"])
    np.testing.assert_array_equal(trained.patched(x, source, "embed").value, other.value)
    np.testing.assert_array_equal(trained.patched(x, x, "*").value, own)
    # Nothing after the last layer reads other positions than the last.
    last = trained.patched(x, source, "layers.1.output", position=-1)
    np.testing.assert_allclose(last.value, other.value, atol=1e-6)
    first = trained.patched(x, source, "layers.1.output", position=0)
    np.testing.assert_array_equal(first.value, own)

    def of_head(name, value):
        mixed = other.taps["layers.0.mixed"]
        return value.at[:, :, 1].set(mixed[:, :, 1]) if name == "layers.0.mixed" else value

    expected = LOOKED_INTO.apply(trained.params, x, of_head).value
    patched = trained.patched(x, source, "layers.0.mixed", head=1).value
    np.testing.assert_allclose(patched, expected, atol=1e-6)  # products may be rounded otherwise
    assert np.abs(patched - own).max() > 1e-3


def test_patching_and_reading_name_what_is_not_there():
    trained, x, source = looked_into()
    assert list(trained.forward(x, "layers.*.mlp").taps) == ["layers.0.mlp", "layers.1.mlp"]
    with pytest.raises(InputError, match=r"unknown tap of Transformer 'layers.7.mlp'; did you"):
        trained.forward(x, ["embed", "layers.7.mlp"])
    with pytest.raises(InputError, match=r"^Transformer.apply failed: Type"):
        trained.forward(x.astype(float))
    with pytest.raises(InputError, match=r"unknown tap of Transformer 'layers.0.mixd'"):
        trained.patched(x, source, "layers.0.mixd")
    with pytest.raises(InputError, match=r"patched.head is 2, but layers.0.mixed has 2 heads"):
        trained.patched(x, source, "layers.0.mixed", head=2)
    with pytest.raises(InputError, match=r"patched.position is 9, but .* has 5 positions"):
        trained.patched(x, source, "layers.0.mixed", position=9)
    with pytest.raises(InputError, match=r"has shape \(2, 5, 8\) in one forward pass and"):
        trained.patched(x, source[:2], "embed")


def test_the_logit_lens_ends_with_the_output():
    trained, x, _ = looked_into()
    lens = trained.logit_lens(x)
    assert lens.shape == (3, 4, 6)
    np.testing.assert_array_equal(lens[-1], trained.forward(x).value)
    params = trained.params
    embedded = trained.forward(x, ["embed"]).taps["embed"][:, -1]
    np.testing.assert_allclose(lens[0], params.readout(params.norm(embedded)), atol=1e-6)


def test_the_torch_module_gives_the_same_outputs():
    torch = pytest.importorskip("torch")
    trained, x, _ = looked_into(interventions=(Clamp("layers.0.pattern", until=100),))
    with torch.no_grad():
        value = trained.to_torch()(torch.from_numpy(np.array(x))).numpy()
    np.testing.assert_allclose(value, trained.forward(x).value, atol=1e-5)
    with pytest.raises(InputError, match=r"at step 99 the intervention Clamp.* is active"):
        trained._replace(step=99).to_torch()
