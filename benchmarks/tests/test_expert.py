"""Runs that are stacked in PyTorch by hand are those of the plain loop, side by side. Needs
PyTorch."""

import pytest

from benchmarks.training import Case

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("recall", [False, True])
def test_stacked_runs_are_single_ones(recall):
    """Outputs and gradients of each, with the same weights; fp32 sums in other orders."""
    from benchmarks.expert import stacked_model
    from benchmarks.peer import torch_model

    torch.manual_seed(0)
    sizes = (2, 2, 5, 3, 8, 2)  # layers, heads, length, dim, width and factor
    stacked = stacked_model(2, *sizes, recall=recall)
    single = [torch_model(*sizes, recall=recall) for _ in range(2)]
    for run, model in enumerate(single):
        pairs = [(stacked.readout, model.readout)] + [(stacked.embed, model.embed)] * (not recall)
        for ours, theirs in zip(stacked.blocks, model.blocks, strict=True):
            pairs += [
                (ours.query, theirs.query),
                (ours.out, theirs.out),
                (ours.up, theirs.up),
                (ours.down, theirs.down),
            ]
            with torch.no_grad():
                ours.pair.weight[run] = torch.cat([theirs.key.weight, theirs.value.weight]).T
                ours.pair.bias[run, 0] = torch.cat([theirs.key.bias, theirs.value.bias])
        with torch.no_grad():
            for ours, theirs in pairs:
                ours.weight[run] = theirs.weight.T
                ours.bias[run, 0] = theirs.bias
            if recall:
                stacked.embed.weight[run] = model.embed.weight
    inputs = torch.randint(3, (2, 4, 5)) if recall else torch.randn(2, 4, 5, 4)
    outputs = stacked(inputs, torch.float32)
    (outputs**2).sum().backward()
    for run, model in enumerate(single):
        alone = model(inputs[run])
        (alone**2).sum().backward()
        torch.testing.assert_close(outputs[run], alone, rtol=1e-4, atol=1e-5)
        embed = model.embed.weight.grad if recall else model.embed.weight.grad.T
        torch.testing.assert_close(stacked.embed.weight.grad[run], embed, rtol=1e-4, atol=1e-5)
        up = model.blocks[0].up.weight.grad.T
        torch.testing.assert_close(stacked.blocks[0].up.weight.grad[run], up, rtol=1e-4, atol=1e-5)


def test_stacked_minimal_attentions_are_single_ones():
    from benchmarks.expert import stacked_minimal
    from benchmarks.peer import torch_minimal

    torch.manual_seed(0)
    stacked = stacked_minimal(2, 3, 6, 5, answers=4)
    single = [torch_minimal(3, 6, 5) for _ in range(2)]
    tokens = torch.randint(5, (2, 7, 6))
    with torch.no_grad():
        for run, model in enumerate(single):
            model.query.normal_()
            model.value.normal_()
            stacked.query[run] = model.query
            stacked.value[run] = model.value[..., :5]
    outputs = stacked(tokens)
    (outputs**2).sum().backward()
    for run, model in enumerate(single):
        alone = model(tokens[run])[:, -4:]
        (alone**2).sum().backward()
        torch.testing.assert_close(outputs[run], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stacked.query.grad[run], model.query.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            stacked.value.grad[run], model.value.grad[..., :5], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 4, 2, 3, "fp32"),
        Case(1, 1, 5, 4, 3, "fp32", recall=True),
        Case(1, 1, 22, 3, 3, "fp32", chain=True),
    ],
)
def test_a_step_learns(case):
    """In recall the tokens' frequencies, and in the random data of the chain what repeats by
    chance."""
    from benchmarks.expert import stacked_step

    step = stacked_step(case, "cpu", batch=8)
    losses = torch.stack([step() for _ in range(60)])
    assert losses.shape == (60, 3)
    assert bool((losses[-20:].mean(0) < losses[:5].mean(0)).all())
