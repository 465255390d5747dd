"""The PyTorch loop that chains are timed against learns the same: same start, same data, same loss. Needs PyTorch."""

import jax
import numpy as np
import pytest

from emergo._random import fold_in, raw
from emergo.bench._training import Case, bench_training
from emergo.engine import Config, Optimizer, Run, train
from emergo.models import MinimalAttention
from emergo.tasks import Groups, MarkovChain, Supply

torch = pytest.importorskip("torch")


def test_the_loop_trains_what_the_engine_trains():
    from emergo.bench._peer import chain_loss, torch_minimal, torch_step

    task = MarkovChain(Groups((1, 1), importance=2.0), vocabulary=5, generated=4)
    model = MinimalAttention(task.length - 1, 5, heads=2, scale=1e-3)
    run = Run(Config(task, model, Optimizer("adamw", 0.08, clip=1.0), 32, "fp32", 40, 0.0, tests=64, samples=64), 0)
    (ours,) = train([run])

    key = raw(jax.random.key(run.seed))
    truth, start = task.truth(fold_in(key, 0)), model.init(fold_in(key, 1))[0]
    supply, stream = Supply(64, 32), fold_in(key, 2)
    data, tests = supply.dataset(task, stream, truth), task.sample(fold_in(key, 3), 64, truth)
    peer = torch_minimal(2, model.length, 5)
    with torch.no_grad():
        peer.query.copy_(torch.tensor(np.array(start.query)))
    optimizer = torch.optim.AdamW(peer.parameters(), lr=0.08, weight_decay=0.01)

    def words(tokens):
        return torch.tensor(np.array(tokens), dtype=torch.long)

    losses = []
    for step in range(41):
        with torch.no_grad():
            losses.append(float(chain_loss(peer, words(tests), task.generated)))
        batch = words(supply.at(task, stream, step, truth, data))
        torch_step(peer, optimizer, chain_loss(peer, batch, task.generated), clip=1.0)
    # Forty steps of AdamW in fp32, summed in other orders.
    np.testing.assert_allclose(np.array(losses)[ours.curves["step"]], ours.curves["loss"], rtol=1e-3)
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
def test_the_row_of_the_chain_is_timed():
    (row,) = bench_training([Case(1, 1, 25, 6, 1, "fp32", chain=True)])
    assert row["torch_ms"] > 0
    assert row["ratio"] == pytest.approx(row["torch_ms"] / row["ms"])
    assert 0 < row["floor_ms"] < row["ms"]
