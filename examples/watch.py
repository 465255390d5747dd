"""Watch a PyTorch model of your own: a small Transformer learns to repeat what it has seen.

    python examples/watch.py [LOG]

A sequence is 16 random letters, and the same 16 again. Takes ten seconds on one core.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import emergo.torch as et

LETTERS = 16  # kinds of letters, and letters until the sequence repeats
WIDTH = 32
HEADS = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        up = nn.Linear(WIDTH, 4 * WIDTH)
        down = nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), up, nn.GELU(), down)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(2 * LETTERS, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.readout = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters):
        return self.readout(self.blocks(self.embed(letters) + self.positions))


def sample(n=32):
    """Return letters, and the next letters as labels; -100 where these cannot be known."""
    letters = torch.randint(LETTERS, (n, LETTERS)).repeat(1, 2)
    labels = letters.roll(-1, 1)
    labels[:, : LETTERS - 1] = -100
    return letters, labels


def train(log="log.csv"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with et.watch(model, log, every=10, overwrite=True) as watch:
        for _ in range(1000):
            inputs, labels = sample()
            outputs = model(inputs).flatten(0, 1)
            loss = F.cross_entropy(outputs, labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch(loss)


if __name__ == "__main__":
    train(*sys.argv[1:])
