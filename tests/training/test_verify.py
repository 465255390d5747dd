"""Training uses the model that was written: `apply`, or a path that was found to agree with it."""

import dataclasses
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo.core.errors import FastPathError
from emergo.models.fast import PATHS, find_path
from emergo.training import train
from emergo.training._program import Program, largest_sizes
from emergo.training._verify import compare_path

from .own import CHAIN, LANGUAGE, TRANSFORMER, follows, plain_run
from .untyped import ChainTransformer, Clamp, Run, SingleLocation, Transformer

pytestmark = pytest.mark.usefixtures("fast_paths")

BASE = TRANSFORMER.replace(steps=10, threshold=None)
PATH = next(path for path in PATHS if path.model is Transformer)
OPTIONS = {"layers": 1, "heads": 2, "width": 8, "mlp_factor": 2}


class Doubled(Transformer):
    """A subclass that overrides `apply`."""

    def apply(self, params, inputs, tap=lambda name, value: value):
        output = super().apply(params, inputs, tap)
        return output._replace(value=2 * output.value)


class Gained(Transformer):
    """A subclass with a further field."""

    gain: float = 1.0

    def apply(self, params, inputs, tap=lambda name, value: value):
        output = super().apply(params, inputs, tap)
        return output._replace(value=self.gain * output.value)


def never(model, params, inputs, tap, stack_size):
    raise AssertionError("the optimised path was used")


def without_option(name):
    return {key: allowed for key, allowed in PATH.options.items() if key != name}


# Each case: a model, and the table of optimised paths.
WRITTEN = {
    "a subclass that overrides apply": (Doubled(**OPTIONS), PATHS),
    "a subclass with a further field": (Gained(**OPTIONS, gain=3.0), PATHS),
    "a further field with its default": (Gained(**OPTIONS), PATHS),
    "a new option of the Transformer": (
        Transformer(**OPTIONS),
        [dataclasses.replace(PATH, options=without_option("top_k"), forward=never)],
    ),
    "a new value of an option": (
        Transformer(**OPTIONS, norm="pre"),
        [dataclasses.replace(PATH, options={**PATH.options, "norm": ("none",)})],
    ),
}


def use_paths(monkeypatch, *paths):
    """Replace the table; a new option or a wrong kernel cannot be simulated otherwise."""
    monkeypatch.setattr("emergo.models.fast._table.PATHS", paths)


@pytest.mark.parametrize("case", WRITTEN)
def test_the_model_that_was_written_is_trained(case, monkeypatch):
    model, paths = WRITTEN[case]
    use_paths(monkeypatch, *(dataclasses.replace(path, forward=never) for path in paths))
    run = Run(BASE.replace(model=model), 0)
    (result,) = train([run])
    _, tested, trained = plain_run(run, optax.adam(0.02))
    follows(result, tested, trained)


def wrong(change):
    """Return the path of the Transformer with a wrong kernel."""

    def forward(model, params, inputs, tap, stack_size):
        return change(model.apply(params, inputs, tap), tap)

    return dataclasses.replace(PATH, forward=forward)


def wrong_gradient(output, tap):
    shift = output.value - jax.lax.stop_gradient(output.value)  # zero, with a gradient
    return output._replace(value=output.value + 1e-3 * shift)


WRONG = {
    "value": lambda output, tap: output._replace(value=output.value * (1 + 1e-4)),
    "attention": lambda output, tap: output._replace(attention=output.attention * (1 + 1e-4)),
    "value_path": lambda output, tap: output._replace(value_path=output.value_path + 1e-4),
    "gradient": wrong_gradient,
    "attention, missing": lambda output, tap: output._replace(attention=None),
    "value, not finite": lambda output, tap: output._replace(value=output.value / 0),
}


def compare(path, *configs):
    runs = [Run(config, seed) for seed, config in enumerate(configs)]
    device = jax.devices()[0]
    compare_path(path, Program.of(*configs), runs, largest_sizes(configs), 0, device)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_is_named_with_its_wrong_arrays(case):
    part = case.partition(",")[0]
    message = f"the optimised path {PATH.name} differs from Transformer.apply in {part}"
    with pytest.raises(FastPathError, match=re.escape(message)) as error:
        compare(wrong(WRONG[case]), BASE)
    assert ("value:" in str(error.value)) == (
        part == "value" and "gradient" not in str(error.value)
    )


@pytest.mark.slow
def test_a_kernel_that_is_wrong_with_dropout_off_is_caught():
    config = CHAIN.replace(model=ChainTransformer(heads=2, width=8, hidden=8, dropout=0.5))
    [path] = [path for path in PATHS if path.model is ChainTransformer]

    def forward(model, params, inputs, tap, stack_size):
        output = path.forward(model, params, inputs, tap, stack_size)
        return output if tap.key is not None else output._replace(value=1.01 * output.value)

    with pytest.raises(FastPathError, match="in evaluation"):
        compare(dataclasses.replace(path, forward=forward), config)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_path_of_the_transformer_agrees(precision):
    assert find_path(BASE.model, BASE.task.spec) is PATH
    compare(PATH, BASE.replace(precision=precision), BASE.replace(precision=precision, task__dim=2))


LARGE = BASE.replace(
    task=SingleLocation(length=16, dim=8),
    model=Transformer(layers=1, heads=2, width=32),
    batch=256,
)


def test_sums_over_large_batches_may_be_rounded_differently():
    """The path adds 256 terms in one chain, `apply` in several shorter ones."""
    compare(PATH, LARGE, LARGE)


def test_large_batches_are_trained_by_apply():
    """XLA's own choice of a library for sums ends the process with jaxlib 0.10.1."""
    config = LARGE.replace(interventions=(Clamp(0, head=1),), steps=5)
    results = train([Run(config, seed) for seed in range(3)])
    assert [result.state for result in results] == ["trained"] * 3


def test_the_path_of_language_models_agrees():
    """Without values, with dropout, in bf16."""
    config = LANGUAGE.replace(precision="bf16", model__dropout=0.2)
    path = find_path(config.model, config.task.spec)
    assert path is not None
    compare(path, config, config)


def test_wrong_features_are_named():
    def forward(model, params, inputs, tap, stack_size):
        output = model.apply(params, inputs, tap)
        return output._replace(features=output.features * (1 + 1e-4))

    path = find_path(LANGUAGE.model, LANGUAGE.task.spec)
    assert path is not None
    with pytest.raises(FastPathError, match=r"differs from Transformer\.apply in .*features"):
        compare(dataclasses.replace(path, forward=forward), LANGUAGE)


def test_nothing_is_trained_with_a_wrong_kernel(monkeypatch):
    use_paths(monkeypatch, wrong(WRONG["gradient"]))
    chunks = []
    with pytest.raises(FastPathError, match=re.escape(PATH.name)):
        train([Run(BASE, 0)], progress=chunks.append)
    assert chunks == []


def test_a_kernel_that_is_wrong_for_padded_runs_is_caught(monkeypatch):
    """Only the middle run is padded."""

    def on_padding(output, tap):
        padded = tap.spec.used is not None and tap.spec.used[0] < tap.spec.inputs
        return output._replace(value=output.value * jnp.where(padded, 1.01, 1.0))

    use_paths(monkeypatch, wrong(on_padding))
    train([Run(BASE, 0)])
    small = BASE.replace(task__dim=2)
    with pytest.raises(FastPathError, match=re.escape(PATH.name)):
        train([Run(BASE, 0), Run(small, 1), Run(BASE, 2)])


def test_optimised_paths_can_be_switched_off(monkeypatch):
    use_paths(monkeypatch, dataclasses.replace(PATH, forward=never))
    monkeypatch.setenv("EMERGO_FAST", "off")
    (result,) = train([Run(BASE, 5)])
    assert result.state == "trained"


def test_interventions_are_trained_by_apply(monkeypatch):
    use_paths(monkeypatch, dataclasses.replace(PATH, forward=never))
    run = Run(BASE.replace(interventions=(Clamp(0, head=1),)), 0)
    (result,) = train([run])
    assert result.curves is not None
    np.testing.assert_allclose(result.curves["entropy"][:, 0, 1], np.log(6), rtol=1e-5)


CACHED = """
import dataclasses, sys
from emergo.models import Transformer
from emergo.models.fast import PATHS, _table
from emergo.training import train
from tests.training.own import TRANSFORMER, Run

def forward(model, params, inputs, tap, stack_size):
    output = model.apply(params, inputs, tap)
    return output._replace(value=float(sys.argv[1]) * output.value)

path = next(path for path in PATHS if path.model is Transformer)
_table.PATHS = [dataclasses.replace(path, forward=forward)]
train([Run(TRANSFORMER.replace(steps=10), 0)])
"""


@pytest.mark.slow
def test_the_verdict_is_stored_next_to_the_compiled_programs(tmp_path, request):
    """A kernel that is changed without a change of the source is not compared again."""
    unset = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
    environment = {key: value for key, value in os.environ.items() if key not in unset}

    def run(factor, folder):
        return subprocess.run(
            [sys.executable, "-c", CACHED, factor],
            cwd=request.config.rootpath,
            env=environment | {"EMERGO_CACHE": str(tmp_path / folder)},
            capture_output=True,
            text=True,
        )

    first = run("1.0", "cache")
    assert first.returncode == 0, first.stderr[-2000:]
    [verdict] = (tmp_path / "cache" / "verdicts").iterdir()
    assert verdict.name.startswith("verdict-")
    assert run("1.01", "cache").returncode == 0
    assert "FastPathError" in run("1.01", "other").stderr
