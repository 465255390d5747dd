"""Count the PyTorch operations of observed steps: on a GPU, they are what `watch` costs."""

import pytest

import emergo.torch as et
from benchmarks.peer import Peer, peer
from benchmarks.training import Case
from benchmarks.watch import EVERY, Counter, operations

from .models import Block, Words, batch, loss_of


@pytest.mark.parametrize(("recall", "layers"), [(False, 1), (False, 3), (True, 2), (True, 4)])
def test_a_row_costs_less_than_one_percent_of_fifty_steps(tmp_path, recall, layers):
    """With head scores, and with the step that prepares the row."""
    case = Case(layers, 2, 17, 8, 1, "fp32", recall=recall)
    plain, added = operations(peer(case, width=8), tmp_path)
    assert 0 < added < 0.01 * EVERY * plain


def test_layers_are_evaluated_together(tmp_path):
    """More layers need a few more views each, not more statistics."""
    rows = []
    for layers in (2, 4):
        (tmp_path / str(layers)).mkdir()
        loop: Peer = peer(Case(layers, 2, 16, 8, 1, "fp32"), width=8)
        rows.append(operations(loop, tmp_path / str(layers))[1])
    assert rows[1] - rows[0] < 2 * 30


def test_steps_that_are_not_observed_need_no_operation(tmp_path):
    model = Words(Block("sdpa"))
    loss = loss_of(model, batch(0))
    with et.watch(model, tmp_path / "log.csv", every=10, start=1) as watch:
        watch(loss)
        with Counter() as count:
            watch(loss)
    assert count.calls == 0


def test_the_host_waits_once_per_row(tmp_path):
    """All numbers of a row, the loss among them, are read in a single transfer."""

    class Reads(Counter):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += func.overloadpacket.__name__ in ("_local_scalar_dense", "_to_copy")
            return func(*args, **(kwargs or {}))

    model = Words(Block("sdpa"), Block("softmax"))
    reads = Reads()
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        for step in range(3):
            loss = loss_of(model, batch(step))
            loss.backward()
            with reads:
                watch(loss)
    # A list of numbers is read at once, without a call that is counted.
    assert reads.calls == 0
