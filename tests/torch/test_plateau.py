"""Compare plateaus of a watched PyTorch loop with training by emergo."""

import numpy as np
import pandas as pd
import pytest
import torch

import emergo.torch as et
from benchmarks.peer import peer
from benchmarks.training import Case
from emergo.logs import measure_logs
from emergo.models import Transformer
from emergo.tasks import SingleLocation
from emergo.training import Config, Optimizer, Run, train

LENGTH = 16
DIM = 8
WIDTH = 32
RATE = 2e-3
SEEDS = 6
EVERY = 10
STEPS = 300
LEARNED = 0.05  # half of the threshold; the loop stops there


def watched(seed, path):
    """Run the PyTorch loop of the benchmarks, with a test every few steps."""
    torch.manual_seed(seed)
    loop = peer(Case(1, 1, LENGTH, DIM, 1, "fp32"), WIDTH, RATE)
    inputs, targets = (
        torch.cat(parts) for parts in zip(*(next(loop.batches) for _ in range(32)), strict=True)
    )
    with et.watch(loop.model, path, every=EVERY, sequences=32, queries=1) as watch:
        for step in range(STEPS):
            with torch.no_grad():
                loss = loop.loss(inputs, targets) if step % EVERY == 0 else float("nan")
            loop.step()
            watch(loss=loss)
            if loss < LEARNED:
                break


@pytest.mark.slow
def test_plateaus_of_pytorch_and_emergo_agree(tmp_path):
    task = SingleLocation(LENGTH, DIM, position="random", indicator=True)
    model = Transformer(layers=1, heads=1, width=WIDTH)
    optimizer = Optimizer("adam", RATE)
    config = Config(task, model, optimizer, precision="fp32", steps=STEPS, threshold=0.1)
    ours = np.log(
        [result.plateau.time for result in train([Run(config, seed) for seed in range(SEEDS)])]
    )
    paths = [tmp_path / f"{seed}.csv" for seed in range(SEEDS)]
    for seed, path in enumerate(paths):
        watched(seed, path)
    table = measure_logs(paths, "loss", 0.1)
    assert (table["state"] == "reached").all()
    theirs = np.log(table["plateau"])
    # Means of logs over seeds differ by about their standard error, here 9%. Three are allowed.
    error = np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / SEEDS)
    assert error < 0.15
    assert abs(ours.mean() - theirs.mean()) < 3 * error
    # The attention of the last position is sparse after the plateau, but not before.
    for path, plateau in zip(paths, table["plateau"], strict=True):
        log = pd.read_csv(path)
        assert log["entropy_0_0"][0] > 0.95 * np.log(LENGTH)
        assert log["entropy_0_0"].iloc[-1] < 0.5 * np.log(LENGTH)
        assert log["largest_0_0"][log["step"] <= plateau / 2].max() < 0.5
