"""Test the assignment of linear maps to paths and layers."""

from typing import Any

import pytest
import torch
from torch import nn

from emergo import InputError
from emergo.torch._paths import find_pieces, layers_of

from .models import Block, Encoder, Words, gpt2


def pieces_of(model: nn.Module, paths=None) -> dict[str, list[tuple[str, str, slice]]]:
    found = find_pieces(dict(model.named_modules()), paths)
    return {
        name: [(piece.owner, piece.path, piece.columns) for piece in pieces]
        for name, pieces in found.items()
    }


def test_separate_and_fused_maps():
    model = Words(Block("sdpa"), Block("fused"))
    every = slice(None)
    assert pieces_of(model) == {
        "blocks.0.q_proj": [("blocks.0", "query_key", every)],
        "blocks.0.k_proj": [("blocks.0", "query_key", every)],
        "blocks.0.v_proj": [("blocks.0", "value_output", every)],
        "blocks.0.o_proj": [("blocks.0", "value_output", every)],
        "blocks.1.qkv": [
            ("blocks.1", "query_key", slice(16)),
            ("blocks.1", "value_output", slice(16, None)),
        ],
        "blocks.1.o_proj": [("blocks.1", "value_output", every)],
    }
    assert pieces_of(Words(Encoder())) == {}  # observed during the computation instead


def test_the_models_of_hugging_face():
    """GPT-2 has one transposed map for queries, keys and values. BERT's output map is elsewhere."""
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    found = pieces_of(gpt2("sdpa"))
    assert list(found) == [
        f"transformer.h.{i}.attn.{name}" for i in range(2) for name in ("c_attn", "c_proj")
    ]
    assert found["transformer.h.1.attn.c_attn"][1] == (
        "transformer.h.1.attn",
        "value_output",
        slice(16, None),
    )
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "vocab_size": 11,
    }
    owner = "encoder.layer.0.attention"
    names = [
        f"{owner}.self.query",
        f"{owner}.self.key",
        f"{owner}.self.value",
        f"{owner}.output.dense",
    ]
    assert list(pieces_of(BertModel(BertConfig(**sizes)))) == names
    llama = LlamaModel(LlamaConfig(**sizes, num_key_value_heads=1))
    assert list(pieces_of(llama)) == [f"layers.0.self_attn.{name}_proj" for name in "qkvo"]


def test_the_users_names():
    model = Words(Block("sdpa"), Block("sdpa"))
    found = pieces_of(
        model, {"query_key": ["blocks.*.q_proj"], "value_output": ["blocks.0.mlp.weight"]}
    )
    assert list(found) == ["blocks.0.q_proj", "blocks.1.q_proj", "blocks.0.mlp"]
    with pytest.raises(InputError, match=r"unknown path 'query'; did you mean query_key\?"):
        pieces_of(model, {"query": ["blocks.0.q_proj"]})
    with pytest.raises(
        InputError,
        match=r"unknown linear map or parameter 'blocks.0.q_prj'; did you mean blocks.0.q_proj",
    ):
        pieces_of(model, {"query_key": ["blocks.0.q_prj"]})


@pytest.mark.parametrize(
    ("owners", "callers", "layers"),
    [
        (["a.0", "a.1"], ["a.0", "a.1"], {"a.0": 0, "a.1": 1}),
        (["a.0"], ["a.0.core"], {"a.0": 0}),  # an inner module attends
        (
            ["a.0.maps", "a.1.maps"],
            ["a.1", "a.0"],
            {"a.0.maps": 1, "a.1.maps": 0},
        ),  # an outer module attends
        (["shared"], ["shared", "shared"], {"shared": 0}),
        (["a.0", "a.1"], ["", ""], {"a.0": 0, "a.1": 1}),  # the model itself attends, twice
        (["a.1"], ["a.0"], {}),
        (["a"], ["a.0", "a.1"], {}),  # ambiguous
        (["a.0", "a.1", "a.2"], ["", ""], {}),
    ],
)
def test_layers_of(owners, callers, layers):
    assert layers_of(tuple(owners), tuple(callers)) == layers


def test_embeddings_are_not_linear_maps():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Embedding(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.out = nn.Parameter(torch.zeros(3, 3))

    assert pieces_of(Odd()) == {}
