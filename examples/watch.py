"""Watch a PyTorch model of your own: a small Transformer learns to repeat what it has seen.

    python examples/watch.py [LOG]

A sequence is 16 random letters, and the same 16 again. In the second half the next letter can be
known: a head finds where the current letter stood before, and copies what followed it. This takes
ten seconds on one core. Meanwhile, `emergo view LOG` shows the log in the browser.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import emergo.torch as et

LETTERS = 16
PERIOD = 16
WIDTH = 32
HEADS = 4
STEPS = 1000


class Block(nn.Module):
    """Causal attention and an MLP."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Two blocks on letters; predicts the next letter at every position."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(2 * PERIOD, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.readout = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters):
        return self.readout(self.blocks(self.embed(letters) + self.positions))


def sample(n=32):
    """Draw inputs, and the next letters as labels; -100 where these cannot be known."""
    letters = torch.randint(LETTERS, (n, PERIOD)).repeat(1, 2)
    labels = letters.roll(-1, 1)
    labels[:, : PERIOD - 1] = -100
    return letters, labels


def train(log):
    """Train the model and watch every 10th step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with et.watch(model, log, every=10, overwrite=True) as watch:
        for _ in range(STEPS):
            inputs, labels = sample()
            loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch(loss)


if __name__ == "__main__":
    train(sys.argv[1] if len(sys.argv) > 1 else "log.csv")
