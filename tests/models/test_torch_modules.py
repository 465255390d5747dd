"""Models as PyTorch modules: the outputs of every option are those of `apply`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emergo.core.contract import Spec, Tap
from emergo.core.errors import InputError
from emergo.models import (
    Attention,
    ChainTransformer,
    EquinoxModel,
    MinimalAttention,
    ToyAttention,
    Transformer,
)

FEATURES = Spec(length=7, inputs=5, outputs=5)
TOKENS = Spec(length=7, inputs=6, outputs=4, answers=3)
TEXT = Spec(length=7, inputs=6, outputs=6, answers=3)
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 8}


def inputs_of(spec):
    generator = np.random.default_rng(0)
    if spec in (TOKENS, TEXT):
        return generator.integers(0, spec.inputs, (9, spec.length)).astype(np.int32)
    return generator.standard_normal((9, spec.length, spec.inputs)).astype(np.float32)


def perturbed(params):
    """Add noise, because many parameters start at 0 and would hide wrong terms."""
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: x + 0.2 * generator.standard_normal(x.shape).astype(np.float32), params
    )


MODELS = [
    (Transformer(**SMALL), FEATURES),
    (Transformer(**SMALL, norm="pre", activation="gelu", positions="learned"), TOKENS),
    (Transformer(**SMALL, norm="post", positions="rope", mask="causal"), FEATURES),
    (Transformer(**SMALL, attention="linear", mask="causal", window=3, skip=False), FEATURES),
    (Transformer(**SMALL, attention="sigmoid", mlp=False, positions="none", top_k=2), TOKENS),
    (Transformer(**SMALL, attention="biased", temperature="learned", window=3), FEATURES),
    (Transformer(**SMALL, attention="positional", mask="causal"), FEATURES),
    (Transformer(**SMALL, norm="pre", activation="swiglu", norm_type="rms", tied=True), TEXT),
    (Transformer(**SMALL, norm="post", norm_type="rms", tied=True, dropout=0.5), FEATURES),
    (ChainTransformer(layers=2, heads=2, width=8, hidden=5, context=3), TOKENS),
    (MinimalAttention(layers=2, heads=2, start="xavier"), TOKENS),
    (MinimalAttention(heads=1, context=4), Spec(length=7, inputs=5, outputs=5)),
    (ToyAttention(), FEATURES),
]


@pytest.mark.parametrize(("model", "spec"), MODELS, ids=lambda x: type(x).__name__)
def test_outputs_agree(model, spec):
    only_tokens = model.only_tokens
    x = inputs_of(TOKENS if only_tokens else spec)
    x = x % spec.inputs if only_tokens else x
    params = perturbed(model.init(jax.random.key(0), spec))
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(model.apply(params, jnp.asarray(x), Tap(spec)).value)
    module = model.to_torch(params, spec)
    with torch.no_grad():
        got = module(torch.from_numpy(x)).numpy()
    assert isinstance(module, torch.nn.Module)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5 * max(1, np.abs(expected).max()))
    for name, parameter in module.named_parameters():
        assert parameter.requires_grad, name
    counts = (
        sum(p.numel() for p in module.parameters()),
        sum(x.size for x in jax.tree.leaves(params)),
    )
    assert counts[0] == counts[1]


class Own(Attention):
    pass


def make(key, spec):
    return jnp.ones(3)


class Doubled(Transformer):
    def apply(self, params, inputs, tap=None) -> Any:
        return 2 * super().apply(params, inputs).value


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Transformer(**SMALL, attention=Own()), r"attention Own\(\) is a form of your own"),
        (EquinoxModel(make), "EquinoxModel must define to_torch"),
        (Doubled(**SMALL), "Doubled must define to_torch"),
    ],
)
def test_other_models_are_refused(model, words):
    with pytest.raises(InputError, match=words):
        model.to_torch(None, FEATURES)
