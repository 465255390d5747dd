"""Watch a PyTorch model of your own: its attention becomes sparse before the loss is low.

python examples/watch.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import emergo.torch as et
from emergo.logs import measure_logs

LENGTH = 16
DIM = 8
WIDTH = 32


class Model(nn.Module):
    """One layer of attention, read at the last position."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM + 1, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, num_heads=1, batch_first=True)
        self.readout = nn.Linear(WIDTH, DIM)

    def forward(self, inputs):
        x = self.embed(inputs) + self.positions
        return self.readout((x + self.attention(x, x, x)[0])[:, -1])


def sample(teacher, n=64):
    """Random tokens, one of them marked; the answer is a linear map of that one."""
    tokens = torch.randn(n, LENGTH, DIM) / DIM**0.5
    marked = torch.randint(LENGTH, (n,))
    marks = nn.functional.one_hot(marked, LENGTH).float()
    return torch.cat([tokens, marks[..., None]], -1), tokens[torch.arange(n), marked] @ teacher


def train(log):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    teacher = torch.randn(DIM, DIM) / DIM**0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with et.watch(model, log, every=10, sequences=64, queries=1) as watch:
        for _ in range(300):
            inputs, target = sample(teacher)
            loss = ((model(inputs) - target) ** 2).sum(-1).mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch(loss=loss)


if __name__ == "__main__":
    log = Path(tempfile.mkdtemp()) / "log.csv"  # in a new folder: existing logs are not overwritten
    train(log)
    sparse = measure_logs([log], "largest_0_0", 0.5, "above")["plateau"][0]
    learned = measure_logs([log], "loss", 0.1, "below")["plateau"][0]
    print(
        f"the largest weight is above 0.5 from step {sparse:.0f} on, the loss below 0.1 from "
        f"step {learned:.0f} on: {log}"
    )
