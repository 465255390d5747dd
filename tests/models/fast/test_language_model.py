"""The optimised path of language models: what it keeps, and where it uses cuDNN's attention."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import Transformer
from emergo.models.fast import find_path
from emergo.tasks import token_losses
from tests.jaxprs import operations_in

LENGTH = 128
COUNT = 3
HEADS = 2
SPEC = Spec(LENGTH, 5, 5, answers=LENGTH, deferred=True)
MODEL = Transformer(layers=2, heads=HEADS, width=16, norm="pre", mask="causal", positions="rope")


def operations(fast: bool, stack_size: int = 0, dtype: Any = jnp.float32) -> list[Any]:
    """Return the operations of the gradient of a loss."""
    path = find_path(MODEL, SPEC)
    assert path is not None
    params = jax.eval_shape(lambda: MODEL.init(jax.random.key(0), SPEC))
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)

    def loss(params: Any, tokens: Any) -> Any:
        if fast:
            output = path.forward(MODEL, params, tokens, Tap(SPEC), stack_size)
        else:
            output = MODEL.apply(params, tokens, Tap(SPEC))
        return token_losses(output, tokens).sum()

    tokens = jax.ShapeDtypeStruct((COUNT, LENGTH), jnp.int32)
    return list(operations_in(jax.make_jaxpr(jax.grad(loss))(params, tokens)))


@pytest.mark.parametrize("fast", [True, False])
def test_only_apply_forms_whole_patterns(fast):
    shapes = {v.aval.shape for one in operations(fast) for v in one.outvars}
    assert ((COUNT, HEADS, LENGTH, LENGTH) in shapes) == (not fast)


@pytest.mark.parametrize(
    ("stack_size", "dtype", "calls"), [(0, jnp.bfloat16, 0), (1, jnp.bfloat16, 2), (1, "f4", 0)]
)
def test_a_gpu_runs_cudnns_kernel_in_bf16(stack_size, dtype, calls, monkeypatch):
    given = []
    reference = jax.nn.dot_product_attention

    def kernel(q, k, v, *, is_causal, implementation):
        given.append((is_causal, implementation))
        return reference(q, k, v, is_causal=is_causal)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    operations(True, stack_size, dtype)
    assert given == calls * [(True, "cudnn")]
