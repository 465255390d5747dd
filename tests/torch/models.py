"""Small models with different implementations of attention, and a training loop."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as by_another_name
from torch.utils.checkpoint import checkpoint

WORDS = 11
LENGTH = 6


class Block(nn.Module):
    """A block of a Transformer; `kind` is the implementation of attention."""

    def __init__(self, kind: str, width: int = 8, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.kind = kind
        self.heads = heads
        self.dropout = dropout
        if kind == "fused":
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        maps = (
            self.qkv(x).chunk(3, -1)
            if self.kind == "fused"
            else [f(x) for f in (self.q_proj, self.k_proj, self.v_proj)]
        )
        q, k, v = (y.view(n, length, self.heads, -1).transpose(1, 2) for y in maps)
        rate = self.dropout if self.training else 0.0
        if self.kind == "softmax":
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
            mixed = F.dropout(scores.softmax(-1), rate) @ v
        elif self.kind == "by name":
            mixed = by_another_name(q, k, v, dropout_p=rate, is_causal=True)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, None, rate, True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(n, length, width))
        return x + F.dropout(torch.relu(self.mlp(x)), rate)


class RawBlock(nn.Module):
    """The same block with parameters for each head, as in TransformerLens, and no linear modules.

    Its scores have heads and sequences in one axis.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()

        def by_head(weight: Tensor) -> nn.Parameter:
            return nn.Parameter(weight.detach().unflatten(0, (block.heads, -1)).mT.clone())

        self.W_Q, self.W_K, self.W_V = (
            by_head(f.weight) for f in (block.q_proj, block.k_proj, block.v_proj)
        )
        self.W_O = nn.Parameter(block.o_proj.weight.detach().T.clone())
        self.biases = [f.bias.detach() for f in (block.q_proj, block.k_proj, block.v_proj)]
        self.bias = block.o_proj.bias.detach()
        self.mlp = block.mlp

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        heads = len(self.W_Q)
        q = torch.einsum("ntw,hwk->nthk", x, self.W_Q)
        k = F.linear(x, self.W_K.mT.flatten(0, 1)).unflatten(-1, (heads, -1))
        v = torch.einsum("ntw,hwk->nthk", [x, self.W_V])
        q, k, v = (
            (y + bias.view(heads, -1)).transpose(1, 2).reshape(n * heads, length, -1)
            for y, bias in zip((q, k, v), self.biases, strict=True)
        )
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        mixed = (torch.softmax(scores, -1) @ v).unflatten(0, (n, heads)).transpose(1, 2)
        x = x + mixed.reshape(n, length, width) @ self.W_O + self.bias
        return x + torch.relu(self.mlp(x))


class Gate(nn.Module):
    """Softmaxes that are not attention: a gate, and a mixture of experts for each token."""

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (2, -1))  # (n, length, groups, size)
        gate = groups.softmax(-1)
        x = x + (gate * groups).flatten(2)
        experts = torch.stack([groups, -groups, 2 * groups, groups], -2)
        x = x + torch.einsum("ntge,ntgew->ntgw", gate, experts).flatten(2)
        return x + (gate.unsqueeze(-2) @ experts).squeeze(-2).flatten(2)


class Encoder(nn.Module):
    """PyTorch's encoder layer for inputs (n, length, width)."""

    def __init__(self, dropout: float = 0.0, batch_first: bool = True) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        if self.layer.self_attn.batch_first:
            return self.layer(x, src_mask=mask, is_causal=True)
        return self.layer(x.transpose(0, 1), src_mask=mask, is_causal=True).transpose(0, 1)


class Words(nn.Module):
    """A model of token ids. `reentrant` is the mode of activation checkpointing, None without."""

    def __init__(self, *blocks: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList(blocks)
        self.readout = nn.Linear(8, WORDS)
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.readout(x)


def gpt2(implementation: str) -> nn.Module:
    """Return GPT-2 of Hugging Face with random weights."""
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 8,
        "vocab_size": WORDS,
        "n_positions": LENGTH,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "attn_implementation": implementation,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes))


def batch(step: int, n: int = 4) -> Tensor:
    return torch.randint(WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(step))


def loss_of(model: Callable[[Tensor], Any], tokens: Tensor) -> Tensor:
    """Return the mean loss of the next token."""
    logits = model(tokens)
    logits = getattr(logits, "logits", logits)[:, :-1].float()
    return F.cross_entropy(logits.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def loop(
    model: Any, watch: Callable[..., None], steps: int = 5, micro: int = 1, autocast: bool = False
) -> None:
    """Train; `micro` is the number of passes with accumulated gradients."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        losses = []
        for tokens in batch(step).chunk(micro):
            with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
                loss = loss_of(model, tokens) / micro
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        watch(loss=sum(losses))
