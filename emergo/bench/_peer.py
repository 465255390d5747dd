"""The peer: a training loop as a researcher writes it in PyTorch. One run at a time, fp32, nothing folded.

Needs the extra `bench`. Written on its own, so that it is also an oracle for the Transformer.
"""

import importlib
import math
import time
from typing import Any


def _torch() -> Any:
    return importlib.import_module("torch")


def torch_model(layers: int, heads: int, length: int, dim: int, width: int = 256, factor: int = 4, recall: bool = False) -> Any:
    """The Transformer of zucchet2025, Table 1: on tokens with the indicator as their last feature, or causal, on words."""
    torch = _torch()
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = (f(x).view(n, t, heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=recall)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
            return x + self.down(torch.relu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(dim, width) if recall else nn.Linear(dim + 1, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.readout = nn.Linear(width, dim)
            angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
            self.register_buffer("positions", torch.stack([angle.sin(), angle.cos()], -1).reshape(length, width))

        def forward(self, x):
            x = self.embed(x) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.readout(x[:, -1])

    return Model()


def torch_batch(length: int, dim: int, batch: int, weights: Any) -> tuple[Any, Any]:
    """Sequences with the relevant token at a random position, and their targets."""
    torch = _torch()

    device = weights.device
    tokens = torch.randn(batch, length, dim, device=device) / math.sqrt(dim)
    rows, place = torch.arange(batch, device=device), torch.randint(length, (batch,), device=device)
    marks = torch.zeros(batch, length, 1, device=device)
    marks[rows, place] = 1
    return torch.cat([tokens, marks], -1), tokens[rows, place] @ weights.T


def torch_recall_batch(length: int, vocabulary: int, batch: int, device: Any) -> tuple[Any, Any]:
    """Pairs of a key and its value by a random permutation, a query, and its value."""
    torch = _torch()

    pairs = length // 2
    values = torch.rand(batch, vocabulary, device=device).argsort(1)
    keys = torch.rand(batch, vocabulary, device=device).argsort(1)[:, :pairs]
    context = torch.stack([keys, values.gather(1, keys)], -1).reshape(batch, 2 * pairs)
    query = keys.gather(1, torch.randint(pairs, (batch, 1), device=device))
    return torch.cat([context, query], 1), values.gather(1, query)[:, 0]


def torch_minimal(heads: int, length: int, vocabulary: int, scale: float = 1e-9) -> Any:
    """The minimal attention of yuksel2026, one layer: one-hot tokens and positions, and dense products with them."""
    torch = _torch()
    nn = torch.nn

    size = vocabulary + length

    class Model(nn.Module):
        places: Any
        later: Any

        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(scale * (2 * torch.rand(heads, size, size) - 1))
            self.value = nn.Parameter(torch.zeros(heads, size, size))
            self.register_buffer("places", torch.eye(length))
            self.register_buffer("later", torch.ones(length, length).triu(1).bool())

        def forward(self, tokens):
            hot = nn.functional.one_hot(tokens, vocabulary).float()
            x = torch.cat([hot, self.places.expand(len(tokens), -1, -1)], -1)
            scores = torch.einsum("nic,hcd,ntd->nhti", x, self.query, x) / math.sqrt(size)
            weights = scores.masked_fill(self.later, -math.inf).softmax(-1)
            return torch.einsum("nhti,nic,hco->nto", weights, x, self.value)[..., :vocabulary]

    return Model()


def chain_loss(model: Any, tokens: Any, generated: int) -> Any:
    """The cross-entropy of the last `generated` tokens."""
    torch = _torch()

    logits = model(tokens[:, :-1])[:, -generated:]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, -generated:].reshape(-1))


def torch_step(model: Any, optimizer: Any, loss: Any, clip: float | None = None) -> None:
    """One step down a loss."""
    torch = _torch()

    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


class _Epochs:
    """A dataset of random tokens (their values cost nothing), shuffled anew in every epoch."""

    def __init__(self, length: int, vocabulary: int, batch: int, device: Any, samples: int = 9000) -> None:
        torch = _torch()

        self.data, self.batch, self.left = torch.randint(vocabulary, (samples, length), device=device), batch, []

    def next(self) -> Any:
        torch = _torch()

        if not self.left:
            order = torch.randperm(len(self.data), device=self.data.device)
            self.left = list(order.split(self.batch))
        return self.data[self.left.pop()]


def torch_seconds(
    layers: int,
    heads: int,
    length: int,
    dim: int,
    batch: int = 32,
    compiled: bool = False,
    seconds: float = 3.0,
    recall: bool = False,
    chain: bool = False,
) -> float:
    """Seconds a step of the plain loop takes, or of the loop under `torch.compile`: the median of blocks of ten steps."""
    torch = _torch()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if chain:
        model = torch_minimal(heads, length, dim).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.08, weight_decay=0.01)
    else:
        model = torch_model(layers, heads, length, dim, recall=recall).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    weights = torch.randn(dim, dim, device=device) / math.sqrt(dim)
    epochs, generated = _Epochs(length + 1, dim, 3000, device), 20

    def loss_of(tokens: Any, target: Any = None) -> Any:
        if chain:
            return chain_loss(model, tokens, generated)
        if recall:
            return torch.nn.functional.cross_entropy(model(tokens), target)
        return 0.5 * ((model(tokens) - target) ** 2).sum(-1).mean()

    if compiled:
        loss_of = torch.compile(loss_of)

    def step() -> None:
        if chain:
            data = (epochs.next(),)
        else:
            data = torch_recall_batch(length, dim, batch, device) if recall else torch_batch(length, dim, batch, weights)
        torch_step(model, optimizer, loss_of(*data), 1.0 if chain else None)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    times, begun = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        wait()
        start = time.perf_counter()
        for _ in range(10):
            step()
        wait()
        times.append((time.perf_counter() - start) / 10)
    return sorted(times)[len(times) // 2]
