"""Runs that are stacked in PyTorch by hand are those of the plain loop, side by side. Needs PyTorch."""

import pytest

from emergo.bench._training import Case

torch = pytest.importorskip("torch")


def test_stacked_runs_are_single_ones():
    """Outputs and gradients of each, with the same weights; fp32 sums in other orders."""
    from emergo.bench._expert import stacked_model
    from emergo.bench._peer import torch_model

    torch.manual_seed(0)
    sizes = (2, 2, 5, 3, 8, 2)  # layers, heads, length, dim, width and factor
    stacked, single = stacked_model(2, *sizes), [torch_model(*sizes) for _ in range(2)]
    for run, model in enumerate(single):
        pairs = [(stacked.embed, model.embed), (stacked.readout, model.readout)]
        for ours, theirs in zip(stacked.blocks, model.blocks, strict=True):
            pairs += [(ours.query, theirs.query), (ours.out, theirs.out), (ours.up, theirs.up), (ours.down, theirs.down)]
            with torch.no_grad():
                ours.pair.weight[run] = torch.cat([theirs.key.weight, theirs.value.weight]).T
                ours.pair.bias[run, 0] = torch.cat([theirs.key.bias, theirs.value.bias])
        with torch.no_grad():
            for ours, theirs in pairs:
                ours.weight[run], ours.bias[run, 0] = theirs.weight.T, theirs.bias
    inputs = torch.randn(2, 4, 5, 4)
    outputs = stacked(inputs)
    (outputs**2).sum().backward()
    for run, model in enumerate(single):
        alone = model(inputs[run])
        (alone**2).sum().backward()
        torch.testing.assert_close(outputs[run], alone, rtol=1e-4, atol=1e-5)
        for ours, theirs in ((stacked.embed, model.embed), (stacked.blocks[0].up, model.blocks[0].up)):
            torch.testing.assert_close(ours.weight.grad[run], theirs.weight.grad.T, rtol=1e-4, atol=1e-5)


def test_a_step_learns():
    from emergo.bench._expert import stacked_step

    step = stacked_step(Case(1, 1, 4, 2, 3, "fp32"), "cpu", batch=8)
    losses = torch.stack([step() for _ in range(60)])
    assert losses.shape == (60, 3)
    assert bool((losses[-20:].mean(0) < losses[:5].mean(0)).all())
