"""Test which softmaxes are attention: those whose results are multiplied with values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emergo.torch._gradients import Gradients
from emergo.torch._observation import Observation
from emergo.torch._scores import Part
from emergo.torch._statistics import head_statistics

N, HEADS, LENGTH, SIZE = 3, 2, 5, 4
ATTENTION = {
    "matmul": lambda w, v: w @ v,
    "torch.matmul": lambda w, v: torch.matmul(w, v),
    "transposed": lambda w, v: (v.mT @ w.mT).mT,
    "bmm": lambda w, v: torch.bmm(w.flatten(0, 1), v.flatten(0, 1)),
    "einsum": lambda w, v: torch.einsum("nhqk,nhkd->nqhd", w, v),
    "einsum of a list": lambda w, v: torch.einsum("... q k, ... k d -> ... q d", [w, v]),
    "dropout": lambda w, v: F.dropout(w, 0.5) @ v,
    "masked": lambda w, v: (w.masked_fill(w > 0.9, 0.0) * torch.ones(HEADS, 1, 1)) @ v,
    "normalised": lambda w, v: (w / w.sum(-1, keepdim=True)).to(torch.float64) @ v.double(),
    "without the sink": lambda w, v: w[..., :-1] @ v[:, :, 1:],
    "other axes": lambda w, v: w.contiguous().view(N * HEADS, LENGTH, LENGTH) @ v.flatten(0, 1),
}
OTHER = {
    "gate": lambda w, v: w[..., :SIZE] * v,
    "gated data in a product": lambda w, v: (w[..., :SIZE] * v) @ torch.ones(SIZE, LENGTH) @ v,
    "learned values": lambda w, v: w @ nn.Parameter(torch.ones(HEADS, LENGTH, SIZE)),
    "a linear map": lambda w, v: F.linear(w, torch.ones(LENGTH, LENGTH)) @ v,
    "values of each query": lambda w, v: torch.einsum(
        "nhqk,nhqkd->nhqd", w, v[:, :, None] * w[..., None]
    ),
    "unused": lambda w, v: v,
}


class Model(nn.Module):
    def __init__(self, use) -> None:
        super().__init__()
        self.use = use

    def forward(self, x):
        return self.use((x @ x.mT).softmax(-1), x)


@pytest.mark.parametrize("use", [*ATTENTION, *OTHER])
def test_a_softmax_is_attention_if_it_is_multiplied_with_values(use):
    model = Model((ATTENTION | OTHER)[use])
    gradients = Gradients({}, False)
    observation = Observation({"": model}, Part(N, LENGTH), head_statistics, gradients, [])
    model(torch.randn(N, HEADS, LENGTH, SIZE))
    observation.close()
    assert observation.problem is None
    assert observation.layers == ([("", 0)] if use in ATTENTION else [])
