"""The peer of an expert: many runs stacked by hand in PyTorch, with batched products, fused attention, bf16 and a CUDA graph.

What somebody writes who knows PyTorch well and wants a sweep to be fast. Every weight has a leading axis of runs; the last
layer has queries and an MLP only where the output is read; data are drawn and all parameters updated inside the graph. Nothing
is folded: that is algebra of the task, not of the framework. Needs the extra `bench`.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._training import Case

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
WARM_UP = 3  # steps before a graph is captured, on a stream of their own as PyTorch asks for


def stacked_model(runs: int, layers: int, heads: int, length: int, dim: int, width: int = 256, factor: int = 4) -> Any:
    """Transformers as `torch_model` has them, so many at once, without a mask on tokens of `dim` features and an indicator."""
    nn = torch.nn

    class Linear(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            bound = 1 / math.sqrt(inputs)
            self.weight = nn.Parameter(torch.empty(runs, inputs, outputs).uniform_(-bound, bound))
            self.bias = nn.Parameter(torch.empty(runs, 1, outputs).uniform_(-bound, bound))

        def forward(self, x):  # (runs, rows, inputs)
            return torch.baddbmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.pair, self.out = Linear(width, width), Linear(width, 2 * width), Linear(width, width)
            self.up, self.down = Linear(width, factor * width), Linear(factor * width, width)

        def forward(self, x, n, last):
            """(runs, n * length, width) in; of the last layer, (runs, n, width) out."""
            read = x.view(runs, n, length, width)[:, :, -1] if last else x
            q = self.query(read).view(runs * n, -1, heads, width // heads).transpose(1, 2)
            both = self.pair(x).view(runs * n, length, 2, heads, width // heads)
            k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = read + self.out(mixed.transpose(1, 2).reshape(runs, -1, width))
            return x + self.down(torch.relu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.readout = Linear(dim + 1, width), Linear(width, dim)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
            self.register_buffer("positions", torch.stack([angle.sin(), angle.cos()], -1).reshape(length, width))

        def forward(self, x):  # (runs, n, length, dim + 1)
            n = x.shape[1]
            x = self.embed(x.reshape(runs, n * length, dim + 1)) + self.positions.to(x.dtype).repeat(n, 1)
            for block in self.blocks:
                x = block(x, n, last=block is self.blocks[-1])
            return self.readout(x)

    return Model()


def stacked_step(case: "Case", device: str, batch: int = 32) -> Callable[[], Any]:
    """A step of all runs: draws data, descends, and returns the losses. On a GPU it is the replay of a graph."""
    runs, dim, length = case.runs, case.dim, case.length
    model = stacked_model(runs, case.layers, case.heads, length, dim).to(device)
    on_gpu, dtype = device == "cuda", torch.bfloat16 if case.precision == "bf16" else torch.float32
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, **({"capturable": True} if on_gpu else {}))
    weights = torch.randn(runs, dim, dim, device=device) / math.sqrt(dim)

    def step() -> Any:
        tokens = torch.randn(runs, batch, length, dim, device=device, dtype=dtype) / math.sqrt(dim)
        position = torch.randint(length, (runs, batch, 1, 1), device=device)
        marks = torch.zeros(runs, batch, length, 1, device=device, dtype=dtype).scatter_(2, position, 1)
        relevant = tokens.gather(2, position.expand(-1, -1, 1, dim))[:, :, 0]
        target = torch.bmm(relevant.float(), weights.transpose(1, 2))
        value = model(torch.cat([tokens, marks], -1)).float()
        losses = 0.5 * ((value - target) ** 2).sum(-1).mean(-1)
        optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

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
    step, times, begun = stacked_step(case, "cuda" if on_gpu else "cpu"), [], time.perf_counter()
    step()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        since = time.perf_counter()
        for _ in range(10):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - since) / 10)
    return statistics.median(times) / case.runs
