"""The PyTorch loop that chains are timed against learns the same: same start, same data, same loss.
Needs PyTorch."""

import jax
import numpy as np
import pytest

from emergo.core.random import fold_in, raw
from emergo.models import MinimalAttention
from emergo.tasks import Groups, MarkovChain
from emergo.training import Config, Optimizer, Run, train
from emergo.training._program import Program, draw, start

torch = pytest.importorskip("torch")


@pytest.mark.slow
def test_the_loop_trains_what_the_engine_trains():
    from benchmarks.peer import chain_loss, torch_minimal, torch_step

    task = MarkovChain(Groups((1, 1), importance=2.0), vocabulary=5, generated=4)
    model = MinimalAttention(heads=2, scale=1e-3)
    optimizer = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
    run = Run(Config(task, model, optimizer, 32, "fp32", 40, None, n_test=64, n_train=64), 0)
    (ours,) = train([run])
    program = Program.of(run.config)
    slot = start(program, run)
    tests = task.sample(fold_in(raw(jax.random.key(run.seed)), 3), 64, slot.truth)
    peer = torch_minimal(2, task.spec.length, 5)
    with torch.no_grad():
        peer.query.copy_(torch.tensor(np.array(slot.params[0].query)))
    descent = torch.optim.AdamW(peer.parameters(), lr=0.08, weight_decay=0.01)

    def words(tokens):
        return torch.tensor(np.array(tokens), dtype=torch.long)

    losses = []
    for step in range(41):
        with torch.no_grad():
            losses.append(float(chain_loss(peer, words(tests), task.generated)))
        batch = task.sequences(draw(program, slot._replace(step=np.int32(step))))
        torch_step(peer, descent, chain_loss(peer, words(batch), task.generated), clip=1.0)
    assert ours.curves is not None
    # Forty steps of AdamW in fp32, summed in other orders.
    np.testing.assert_allclose(
        np.array(losses)[ours.curves["step"]], ours.curves["loss"], rtol=1e-3
    )
    assert losses[-1] < 0.6 * losses[0]
