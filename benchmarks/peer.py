"""The peer: a training loop as a researcher writes it in PyTorch. One run at a time, fp32, nothing
folded.

Needs the extra `bench`. Written on its own, so that it is also an oracle for the Transformer.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from benchmarks.training import Case

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def torch_model(
    layers: int,
    heads: int,
    length: int,
    dim: int,
    width: int = 256,
    factor: int = 4,
    recall: bool = False,
) -> Any:
    """The Transformer of zucchet2025, Table 1: on tokens with the indicator as their last feature,
    or causal, on words."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = (
                f(x).view(n, t, heads, -1).transpose(1, 2)
                for f in (self.query, self.key, self.value)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=recall)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
            return x + self.down(torch.relu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(dim, width) if recall else nn.Linear(dim + 1, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.readout = nn.Linear(width, dim)
            angle = torch.arange(length)[:, None] * torch.exp(
                torch.arange(0, width, 2) * (-math.log(10_000) / width)
            )
            self.register_buffer(
                "positions", torch.stack([angle.sin(), angle.cos()], -1).reshape(length, width)
            )

        def forward(self, x):
            x = self.embed(x) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.readout(x[:, -1])

    return Model()


def torch_minimal(heads: int, length: int, vocabulary: int, scale: float = 1e-9) -> Any:
    """The minimal attention of yuksel2026, one layer: one-hot tokens and positions, and dense
    products with them."""
    nn = torch.nn
    size = vocabulary + length

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(scale * (2 * torch.rand(heads, size, size) - 1))
            self.value = nn.Parameter(torch.zeros(heads, size, size))
            self.register_buffer("positions", torch.eye(length))
            self.register_buffer("later", torch.ones(length, length).triu(1).bool())

        def forward(self, tokens):
            hot = nn.functional.one_hot(tokens, vocabulary).float()
            x = torch.cat([hot, self.positions.expand(len(tokens), -1, -1)], -1)
            scores = torch.einsum("nic,hcd,ntd->nhti", x, self.query, x) / math.sqrt(size)
            weights = scores.masked_fill(self.later, -math.inf).softmax(-1)
            return torch.einsum("nhti,nic,hco->nto", weights, x, self.value)[..., :vocabulary]

    return Model()


def chain_loss(model: Any, tokens: Any, generated: int) -> Any:
    """The cross-entropy of the last `generated` tokens."""
    logits = model(tokens[:, :-1])[:, -generated:]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens[:, -generated:].reshape(-1)
    )


def torch_step(model: Any, optimizer: Any, loss: Any, clip: float | None = None) -> None:
    """One step down a loss."""
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def _single_location(
    length: int, dim: int, device: str, batch: int = 32
) -> Iterator[tuple[Any, Any]]:
    """Sequences with the relevant token at a random position, and their targets."""
    weights = torch.randn(dim, dim, device=device) / math.sqrt(dim)
    rows = torch.arange(batch, device=device)
    while True:
        tokens = torch.randn(batch, length, dim, device=device) / math.sqrt(dim)
        position = torch.randint(length, (batch,), device=device)
        marks = torch.zeros(batch, length, 1, device=device)
        marks[rows, position] = 1
        yield torch.cat([tokens, marks], -1), tokens[rows, position] @ weights.T


def _recall(
    length: int, vocabulary: int, device: str, batch: int = 32
) -> Iterator[tuple[Any, Any]]:
    """Pairs of a key and its value by a random permutation, a query, and its value."""
    pairs = length // 2
    while True:
        values, words = (torch.rand(batch, vocabulary, device=device).argsort(1) for _ in range(2))
        keys = words[:, :pairs]
        context = torch.stack([keys, values.gather(1, keys)], -1).reshape(batch, 2 * pairs)
        query = keys.gather(1, torch.randint(pairs, (batch, 1), device=device))
        yield torch.cat([context, query], 1), values.gather(1, query)[:, 0]


def _chain(
    length: int, vocabulary: int, device: str, batch: int = 3000, samples: int = 9000
) -> Iterator[tuple[Any, None]]:
    """A dataset of random tokens (their values cost nothing), shuffled anew in every epoch."""
    data = torch.randint(vocabulary, (samples, length + 1), device=device)
    while True:
        for rows in torch.randperm(samples, device=device).split(batch):
            yield data[rows], None


class Peer(NamedTuple):
    """A model in its training loop."""

    model: Any
    optimizer: Any
    batches: Iterator[tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]  # of inputs and target
    clip: float | None = None

    def step(self) -> Any:
        """One step on the next batch; returns its loss."""
        loss = self.loss(*next(self.batches))
        torch_step(self.model, self.optimizer, loss, self.clip)
        return loss.detach()


def peer(case: "Case", width: int = 256, learning_rate: float = 1e-4, device: str = "cpu") -> Peer:
    """The loop of a case; width and learning rate are those of the Transformer."""
    if case.chain:
        model = torch_minimal(case.heads, case.length, case.dim).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.08, weight_decay=0.01)
        batches = _chain(case.length, case.dim, device)
        return Peer(
            model,
            optimizer,
            batches,
            lambda tokens, _: chain_loss(model, tokens, generated=20),
            clip=1.0,
        )
    model = torch_model(
        case.layers, case.heads, case.length, case.dim, width, recall=case.recall
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def loss(inputs: Any, target: Any) -> Any:
        if case.recall:
            return torch.nn.functional.cross_entropy(model(inputs), target)
        return 0.5 * ((model(inputs) - target) ** 2).sum(-1).mean()

    return Peer(
        model,
        optimizer,
        (_recall if case.recall else _single_location)(case.length, case.dim, device),
        loss,
    )


def torch_seconds(case: "Case", compiled: bool = False, seconds: float = 3.0) -> float:
    """Seconds that a step takes in the plain loop, or in the loop under `torch.compile`: the median
    of blocks of ten steps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loop = peer(case, device=device)
    loop = loop._replace(loss=torch.compile(loop.loss)) if compiled else loop

    def block(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            loop.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / steps

    block(5)
    times = []
    begun = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        times.append(block(10))
    return statistics.median(times)
