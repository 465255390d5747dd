"""The peer of an expert: many runs stacked by hand in PyTorch, with batched products, fused
attention, bf16 and a CUDA graph.

What somebody writes who knows PyTorch well and wants a sweep to be fast. Every weight has a leading
axis of runs; the last layer has queries and an MLP only where the output is read; data are drawn
and all parameters updated inside the graph. Nothing is folded: that is algebra of the task, not of
the framework. Needs the extra `bench`.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.training import Case

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
WARM_UP = 3  # steps before a graph is captured, on a stream of their own as PyTorch asks for


def stacked_model(
    runs: int,
    layers: int,
    heads: int,
    length: int,
    dim: int,
    width: int = 256,
    factor: int = 4,
    recall: bool = False,
) -> Any:
    """Transformers as `torch_model` has them, so many at once: on tokens of `dim` features and an
    indicator, or causal, on words."""
    nn = torch.nn

    class Linear(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            bound = 1 / math.sqrt(inputs)
            self.weight = nn.Parameter(torch.empty(runs, inputs, outputs).uniform_(-bound, bound))
            self.bias = nn.Parameter(torch.empty(runs, 1, outputs).uniform_(-bound, bound))

        def forward(self, x):  # (runs, rows, inputs)
            return torch.baddbmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype))

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(runs, dim, width))

        def forward(self, tokens, dtype):  # (runs, rows)
            return _rows_of(self.weight.to(dtype), tokens)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.pair, self.out = (
                Linear(width, width),
                Linear(width, 2 * width),
                Linear(width, width),
            )
            self.up, self.down = Linear(width, factor * width), Linear(factor * width, width)

        def forward(self, x, n, last):
            """(runs, n * length, width) in; of the last layer, (runs, n, width) out, whose query
            sees all positions."""
            read = x.view(runs, n, length, width)[:, :, -1] if last else x
            q = self.query(read).view(runs * n, -1, heads, width // heads).transpose(1, 2)
            both = self.pair(x).view(runs * n, length, 2, heads, width // heads)
            k = both[:, :, 0].transpose(1, 2)
            v = both[:, :, 1].transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=recall and not last
            )
            x = read + self.out(mixed.transpose(1, 2).reshape(runs, -1, width))
            return x + self.down(torch.relu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.readout = (
                Words() if recall else Linear(dim + 1, width),
                Linear(width, dim),
            )
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            angle = torch.arange(length)[:, None] * torch.exp(
                torch.arange(0, width, 2) * (-math.log(10_000) / width)
            )
            self.register_buffer(
                "positions", torch.stack([angle.sin(), angle.cos()], -1).reshape(length, width)
            )

        def forward(self, x, dtype):  # (runs, n, length, dim + 1), or words (runs, n, length)
            n = x.shape[1]
            x = (
                self.embed(x.reshape(runs, -1), dtype)
                if recall
                else self.embed(x.reshape(runs, n * length, dim + 1).to(dtype))
            )
            x = x + self.positions.to(dtype).repeat(n, 1)
            for block in self.blocks:
                x = block(x, n, last=block is self.blocks[-1])
            return self.readout(x).float()

    return Model()


def _rows_of(tables: Any, rows: Any) -> Any:
    """Rows (runs, count) of tables (runs, rows, columns), each run's of its own."""
    first = torch.arange(len(tables), device=tables.device)[:, None] * tables.shape[1]
    return torch.nn.functional.embedding(rows + first, tables.reshape(-1, tables.shape[-1]))


def stacked_minimal(
    runs: int, heads: int, length: int, vocabulary: int, answers: int, scale: float = 1e-9
) -> Any:
    """Minimal attentions as `torch_minimal` has them, so many at once: look-ups instead of products
    with one-hot inputs, and only the last positions, which are compared."""
    nn = torch.nn
    size = vocabulary + length

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(scale * (2 * torch.rand(runs, heads, size, size) - 1))
            self.value = nn.Parameter(torch.zeros(runs, heads, size, vocabulary))
            self.register_buffer(
                "later", torch.ones(length, length).triu(1).bool()[length - answers :, None]
            )

        def forward(self, tokens):  # (runs, n, length)
            n = tokens.shape[1]
            asked = tokens[:, :, length - answers :]
            by_query = self.query.permute(0, 3, 1, 2).reshape(runs, size, heads * size)
            queries = _rows_of(by_query, asked.reshape(runs, -1)).view(
                runs, n, answers, heads, size
            )
            queries = queries + by_query[:, None, size - answers :].view(
                runs, 1, answers, heads, size
            )
            keys = tokens[:, :, None, None].expand(-1, -1, answers, heads, -1)
            scores = queries[..., :vocabulary].gather(-1, keys) + queries[..., vocabulary:]
            weights = (scores / math.sqrt(size)).masked_fill(self.later, -math.inf).softmax(-1)
            by_input = self.value.transpose(1, 2).reshape(runs, size, heads * vocabulary)
            values = _rows_of(by_input, tokens.reshape(runs, -1)).view(
                runs, n, length, heads, vocabulary
            )
            values = values + by_input[:, None, vocabulary:].view(
                runs, 1, length, heads, vocabulary
            )
            mixed = weights.reshape(runs * n, answers, heads * length)
            return (
                mixed @ values.transpose(2, 3).reshape(runs * n, heads * length, vocabulary)
            ).view(runs, n, answers, -1)

    return Model()


def _regression(case: "Case", device: str, batch: int) -> tuple[Any, Callable[[], Any]]:
    """A model of all runs, and a function that draws data and returns their losses."""
    runs = case.runs
    dim = case.dim
    length = case.length
    model = stacked_model(runs, case.layers, case.heads, length, dim).to(device)
    weights = torch.randn(runs, dim, dim, device=device) / math.sqrt(dim)
    dtype = _dtype(case)

    def losses() -> Any:
        tokens = torch.randn(runs, batch, length, dim, device=device, dtype=dtype) / math.sqrt(dim)
        position = torch.randint(length, (runs, batch, 1, 1), device=device)
        marks = torch.zeros(runs, batch, length, 1, device=device, dtype=dtype).scatter_(
            2, position, 1
        )
        relevant = tokens.gather(2, position.expand(-1, -1, 1, dim))[:, :, 0]
        target = torch.bmm(relevant.float(), weights.transpose(1, 2))
        return 0.5 * ((model(torch.cat([tokens, marks], -1), dtype) - target) ** 2).sum(-1).mean(-1)

    return model, losses


def _recall(case: "Case", device: str, batch: int) -> tuple[Any, Callable[[], Any]]:
    runs = case.runs
    vocabulary = case.dim
    pairs = case.length // 2
    model = stacked_model(runs, case.layers, case.heads, case.length, vocabulary, recall=True).to(
        device
    )

    def losses() -> Any:
        values, words = (
            torch.rand(runs, batch, vocabulary, device=device).argsort(-1) for _ in range(2)
        )
        keys = words[..., :pairs]
        context = torch.stack([keys, values.gather(-1, keys)], -1).reshape(runs, batch, 2 * pairs)
        query = keys.gather(-1, torch.randint(pairs, (runs, batch, 1), device=device))
        logits = model(torch.cat([context, query], -1), _dtype(case))
        return _cross_entropy(logits, values.gather(-1, query)[..., 0])

    return model, losses


def _chain(
    case: "Case", device: str, batch: int, generated: int = 20
) -> tuple[Any, Callable[[], Any]]:
    """Of data that were drawn before, whose values cost nothing; rows are drawn anew in every
    step."""
    runs = case.runs
    length = case.length
    model = stacked_minimal(runs, case.heads, length, case.dim, generated).to(device)
    data = torch.randint(case.dim, (runs, 3 * batch, length + 1), device=device)

    def losses() -> Any:
        rows = torch.rand(runs, 3 * batch, device=device).argsort(-1)[:, :batch, None]
        tokens = data.gather(1, rows.expand(-1, -1, length + 1))
        return _cross_entropy(model(tokens[..., :-1]), tokens[..., length + 1 - generated :])

    return model, losses


def _dtype(case: "Case") -> Any:
    return torch.bfloat16 if case.precision == "bf16" else torch.float32


def _cross_entropy(logits: Any, target: Any) -> Any:
    """The mean of each run."""
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), target.flatten(), reduction="none"
    )
    return each.view(len(logits), -1).mean(-1)


def stacked_step(case: "Case", device: str, batch: int | None = None) -> Callable[[], Any]:
    """A step of all runs: draws data, descends, and returns the losses. On a GPU it is the replay
    of a graph."""
    of_task = _chain if case.chain else _recall if case.recall else _regression
    model, losses = of_task(case, device, batch or (3000 if case.chain else 32))
    on_gpu = device == "cuda"
    rates = {"lr": 0.08, "weight_decay": 0.01} if case.chain else {"lr": 1e-4, "weight_decay": 0.0}
    more: dict[str, Any] = {"capturable": True} if on_gpu else {}
    optimizer = torch.optim.AdamW(model.parameters(), **rates, fused=True, **more)

    def step() -> Any:
        now = losses()
        optimizer.zero_grad(set_to_none=True)
        now.sum().backward()
        if case.chain:  # to a norm of 1 in each run
            gradients = [p.grad for p in model.parameters()]
            norms = (
                torch.stack([g.flatten(1).square().sum(1) for g in gradients])
                .sum(0)
                .sqrt()
                .clamp(min=1)
            )
            for gradient in gradients:
                gradient /= norms.view(-1, 1, 1, 1)
        optimizer.step()
        return now.detach()

    return _captured(step) if on_gpu else step


def _captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a CUDA graph of a step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = step()

    def replay() -> Any:
        graph.replay()
        return losses

    return replay


def expert_seconds(case: "Case", seconds: float = 3.0) -> float:
    """Seconds that a step of one run takes among `case.runs`: the median of blocks of ten steps."""
    on_gpu = torch.cuda.is_available()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    step = stacked_step(case, "cuda" if on_gpu else "cpu")
    times = []
    begun = time.perf_counter()
    step()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        since = time.perf_counter()
        for _ in range(10):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - since) / 10)
    return statistics.median(times) / case.runs
