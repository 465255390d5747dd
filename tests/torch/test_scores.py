"""Test that the softmax of the scores, times the values, equals PyTorch's attention."""

import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F

from emergo.torch._scores import READERS, SOFTMAX, Part, Scores, join

PART = Part(2, 3)
# Float32 sums in a different order.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def read(function, *args, part=PART, **kwargs) -> Scores:
    scores = (READERS | SOFTMAX)[function](part, *args, **kwargs)
    assert scores is not None
    return join([scores])._replace(folded=scores.folded)


@hypothesis.given(
    st.sampled_from([None, "bool", "float", "broadcast"]),
    st.booleans(),
    st.sampled_from([None, 0.3]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_scaled_dot_product_attention(mask, causal, scale, key_heads, n_queries, n_keys):
    torch.manual_seed(0)
    q = torch.randn(3, 4, n_queries, 8)
    k = torch.randn(3, key_heads, n_keys, 8)
    v = torch.randn(3, key_heads, n_keys, 8)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": key_heads != 4}
    if mask is None:
        options["is_causal"] = causal
    elif mask == "float":
        options["attn_mask"] = torch.randn(3, 4, n_queries, n_keys)
    else:
        shape = (3, 4, n_queries, n_keys) if mask == "bool" else (n_queries, n_keys)
        options["attn_mask"] = torch.rand(shape) < 0.5
        options["attn_mask"][..., 0] = True
    scores = read(F.scaled_dot_product_attention, q, k, v, **options)
    assert (scores.n_sequences, scores.n_queries) == (3, n_queries)
    mixed = scores.values.softmax(-1) @ v.repeat_interleave(4 // key_heads, 1)[:2]
    torch.testing.assert_close(
        mixed, F.scaled_dot_product_attention(q, k, v, **options)[:2, :, -3:], **CLOSE
    )


def test_attention_without_heads_and_with_more_axes():
    q, k, v = torch.randn(3, 3, 5, 8).unbind()
    scores = read(F.scaled_dot_product_attention, q, k, v, torch.ones(5, 5).tril().bool())
    assert scores.values.shape == (2, 1, 3, 5)
    torch.testing.assert_close(
        scores.values[:, 0].softmax(-1) @ v[:2],
        F.scaled_dot_product_attention(q, k, v, is_causal=True)[:2, -3:],
        **CLOSE,
    )
    windows = torch.randn(2, 3, 4, 5, 8)
    assert read(F.scaled_dot_product_attention, windows, windows, windows).values.shape == (
        2,
        4,
        3,
        5,
    )


MULTI_HEAD = list(
    itertools.product(
        (True, False), (None, 6), (True, False), (None, "bool", "float", "heads"), (True, False)
    )
)


@pytest.mark.parametrize(("batch_first", "kdim", "bias", "mask", "padding"), MULTI_HEAD[::3])
def test_multi_head_attention(batch_first, kdim, bias, mask, padding):
    """Compare with the weights that the module returns."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(
        8, 2, bias=bias, kdim=kdim, vdim=kdim, batch_first=batch_first
    )
    if bias:
        torch.nn.init.normal_(module.in_proj_bias)
    query = torch.randn(3, 4, 8)
    key = torch.randn(3, 5, kdim or 8)
    if not batch_first:
        query = query.transpose(0, 1)
        key = key.transpose(0, 1)
    options = {}
    if mask is not None:
        shape = (6, 4, 5) if mask == "heads" else (4, 5)
        hidden = torch.rand(shape) < 0.4
        hidden[..., 0] = False
        options["attn_mask"] = torch.randn(4, 5) if mask == "float" else hidden
    if padding:
        padded = torch.tensor([5, 3, 4])[:, None] <= torch.arange(5)
        options["key_padding_mask"] = (
            padded.float().masked_fill(padded, -torch.inf) if mask == "float" else padded
        )
    calls = []

    class Record(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.multi_head_attention_forward:
                calls.append((args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Record():
        _, weights = module(query, key, key, average_attn_weights=False, **options)
    [(args, kwargs)] = calls
    scores = read(F.multi_head_attention_forward, *args, **kwargs)
    assert (scores.n_sequences, scores.n_queries) == (3, 4)
    torch.testing.assert_close(scores.values.softmax(-1), weights[:2, :, -3:], **CLOSE)


@pytest.mark.parametrize(
    "softmax", [F.softmax, torch.softmax, torch.special.softmax, torch.Tensor.softmax]
)
def test_a_softmax_is_attention_only_over_keys(softmax):
    scores = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(read(softmax, scores, -1).values, scores[:2, :, -3:])
    torch.testing.assert_close(read(softmax, scores, dim=3).values, scores[:2, :, -3:])
    assert read(softmax, torch.randn(3, 4, 4), -1).values.shape == (2, 1, 3, 4)
    for other, dim in (
        (torch.randn(3, 4, 7), -1),
        (torch.randn(3, 5), -1),
        (scores, 1),
    ):  # logits, a router, maps of classes
        assert SOFTMAX[softmax](PART, other, dim) is None


def test_heads_that_are_folded_into_the_batch_are_recognised():
    x = torch.randn(6, 5, 5)
    for function, args in {F.softmax: (x, -1), F.scaled_dot_product_attention: (x, x, x)}.items():
        folded = read(function, *args, part=Part(2, 5, batch=3))
        assert folded.values.shape == (2, 2, 5, 5)
        assert (folded.n_sequences, folded.folded) == (3, 2)
        for batch in (None, 4, 6):
            single = read(function, *args, part=Part(2, 5, batch=batch))
            assert (single.values.shape, single.folded) == ((2, 1, 5, 5), 0)
        torch.testing.assert_close(
            folded.values[1, 0], read(function, *args, part=Part(9, 5)).values[2, 0]
        )
