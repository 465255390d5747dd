"""Tasks that apply the readout themselves train like tasks that get all outputs at once."""

from typing import Any

import jax
import numpy as np
import pytest

from emergo.core.contract import NO_TAP, Output, Readout, Tap
from emergo.core.errors import InputError
from emergo.models.fast import find_path

from .helpers import alike
from .own import LANGUAGE
from .untyped import Run, Scale, Trained, Transformer, check_config, train

VALUES = LANGUAGE.replace(task__deferred=False)


class OnlyValues(Transformer):
    """A model of a user that does not know of deferred readouts."""

    def apply(self, params, inputs, tap: Any = NO_TAP):
        spec = tap.spec._replace(deferred=False)
        return super().apply(params, inputs, Tap(spec, tap.key, tap.step))


@pytest.mark.usefixtures("fast_paths")
def test_a_run_does_not_depend_on_what_applies_the_readout():
    """The task applies it below the optimised path; the user's model does it in `apply`."""
    assert find_path(LANGUAGE.model, LANGUAGE.task.spec) is not None
    options = {"layers": 1, "heads": 2, "width": 8, "mlp_factor": 2, "norm": "pre"}
    config = LANGUAGE.replace(model=OnlyValues(**options, mask="causal"))
    by_task, by_model = train([Run(LANGUAGE, 0), Run(config, 0)])
    alike(by_model._replace(run=by_task.run), by_task)
    assert by_task.curves["loss"][-1] < by_task.curves["loss"][0]


@pytest.mark.parametrize(
    ("tap", "deferred"),
    [
        (Tap(), False),
        (Tap(VALUES.task.spec), False),
        (Tap(LANGUAGE.task.spec), True),
        (Tap(LANGUAGE.task.spec, reads=["layers.*.pattern"]), True),
        (Tap(LANGUAGE.task.spec, reads=["*"]), False),
        (Tap(LANGUAGE.task.spec, changes=[Scale("layers.0.mlp")]), True),
        (Tap(LANGUAGE.task.spec, changes=[Scale("value")]), False),
    ],
)
def test_values_are_left_out_unless_something_needs_them(tap, deferred):
    params = LANGUAGE.model.init(jax.random.key(0), LANGUAGE.task.spec)
    batch = LANGUAGE.task.batch(jax.random.key(1), 3, ())
    output = LANGUAGE.model.apply(params, batch.inputs, tap)
    assert tap.deferred == deferred
    assert (output.value is None) == deferred
    assert (output.features is not None) == deferred


def test_a_trained_model_returns_values():
    run = Run(LANGUAGE, 0)
    params = LANGUAGE.model.init(jax.random.key(0), LANGUAGE.task.spec)
    batch = LANGUAGE.task.batch(jax.random.key(1), 3, ())
    value = Trained(run, 0, params).forward(batch).value
    expected = Trained(Run(VALUES, 0), 0, params).forward(batch).value
    np.testing.assert_allclose(value, expected, atol=1e-6)


class NoOutput(Transformer):
    def apply(self, params, inputs, tap=NO_TAP):
        return Output(None)


class NoReadout(NoOutput):
    def apply(self, params, inputs, tap=NO_TAP):
        return Output(None, features=params.embed.weight[inputs])


class OddReadout(NoOutput):
    def apply(self, params, inputs, tap=NO_TAP):
        features = params.embed.weight[inputs]
        return Output(None, features=features, readout=Readout(params.readout.weight.T))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoOutput, r"return features or a value, shape \[8, 8, width\], got a NoneType"),
        (NoReadout, "return an em.Readout, got a NoneType"),
        (OddReadout, r"return a readout with a weight, shape \[8, 5\], got float32\[5, 8\]"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(kind, words):
    model = kind(layers=1, heads=2, width=8)
    with pytest.raises(InputError, match=f"{kind.__name__}.apply must {words}"):
        check_config(LANGUAGE.replace(model=model))
    with pytest.raises(InputError, match="must return a value, shape"):
        check_config(VALUES.replace(model=model))
