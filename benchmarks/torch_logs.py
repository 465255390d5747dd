"""Train small Transformers on single-location regression in PyTorch, to calibrate forecasts.

    python -m benchmarks.torch_logs OUT/single-location.parquet    OUT as in forecast_runs.py

Takes a few minutes on one core. The model comes from `benchmarks/peer.py` (two layers, four heads,
width 64), trained on single-location regression with Adam at 3e-4 and batch 32. Negative examples
are runs that end too early, and runs whose tokens carry no mark, so that nothing can be learned.
"""

import itertools
import json
import math
import sys

import pandas as pd
import torch

from benchmarks.peer import torch_model, torch_step
from emergo.measure import write_table

LAYERS = 2
HEADS = 4
WIDTH = 64
BATCH = 32
TESTS = 512


def batches(length: int, dim: int, marked: bool, weights: torch.Tensor, n: int):
    """Yield sequences with the relevant token at a random position, their targets, the position."""
    rows = torch.arange(n)
    while True:
        tokens = torch.randn(n, length, dim) / math.sqrt(dim)
        position = torch.randint(length, (n,))
        marks = torch.zeros(n, length, 1)
        marks[rows, position] = float(marked)
        yield torch.cat([tokens, marks], -1), tokens[rows, position] @ weights.T, position


def measure(model, inputs, target, position) -> dict[str, float]:
    """Measure the test loss, and for each head the attention from the last position to the relevant
    token and the entropy."""
    taken = {}
    hooks = []
    for layer, block in enumerate(model.blocks):
        for name in ("query", "key"):
            hook = lambda _, __, out, place=(layer, name): taken.__setitem__(place, out)  # noqa: E731
            hooks.append(getattr(block, name).register_forward_hook(hook))
    with torch.no_grad():
        row = {"loss": float(0.5 * ((model(inputs) - target) ** 2).sum(-1).mean())}
        for layer in range(LAYERS):
            query, key = (
                taken[layer, n].view(len(inputs), -1, HEADS, WIDTH // HEADS)
                for n in ("query", "key")
            )
            weights = (
                torch.einsum("nhc,nthc->nht", query[:, -1], key)
                .div(math.sqrt(WIDTH // HEADS))
                .softmax(-1)
            )
            mass = weights.gather(2, position[:, None, None].expand(-1, HEADS, 1))[..., 0].mean(0)
            entropy = -(weights * weights.clamp_min(1e-12).log()).sum(-1).mean(0)
            for head in range(HEADS):
                row |= {
                    f"attention_{layer}_{head}": float(mass[head]),
                    f"entropy_{layer}_{head}": float(entropy[head]),
                }
    for hook in hooks:
        hook.remove()
    return row


def train(length: int, dim: int, seed: int, steps: int, marked: bool) -> list[dict[str, float]]:
    torch.manual_seed(1000 * seed + 10 * dim + length)
    model = torch_model(LAYERS, HEADS, length, dim, WIDTH)
    weights = torch.randn(dim, dim) / math.sqrt(dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    tests = next(batches(length, dim, marked, weights, TESTS))
    data = batches(length, dim, marked, weights, BATCH)
    rows = []
    due = 0
    for step in range(steps + 1):
        if step == due:
            rows.append({"step": step, **measure(model, *tests)})
            due = step + max(25, step // 50 // 25 * 25)  # the default grid of emergo
            if rows[-1]["loss"] <= 0.08:
                break
        inputs, target, _ = next(data)
        torch_step(model, optimizer, 0.5 * ((model(inputs) - target) ** 2).sum(-1).mean())
    return rows


def main(path: str) -> None:
    torch.set_num_threads(1)
    cells = [(length, dim, 6000, True) for length, dim in itertools.product((32, 64), (12, 24))]
    cells += [(64, 64, 1500, True), (32, 12, 3000, False)]
    frames = []
    for (length, dim, steps, marked), seed in itertools.product(cells, range(3)):
        name = f"T{length}_d{dim}_{'marked' if marked else 'unmarked'}_s{seed}"
        curve = pd.DataFrame(train(length, dim, seed, steps, marked))
        job = {"family": "single location", "shuffled": not marked, "seed": seed}
        job |= {"length": length, "dim": dim, "steps": steps}
        frames.append(curve.assign(run=name, job=json.dumps(job), threshold=0.1))
        print(name, int(curve["step"].iloc[-1]), f"{curve['loss'].iloc[-1]:.3f}", flush=True)
    table = pd.concat(frames, ignore_index=True)
    floats = table.select_dtypes("float64").columns
    write_table(table.astype(dict.fromkeys(floats, "float32")), path)


if __name__ == "__main__":
    main(sys.argv[1])
