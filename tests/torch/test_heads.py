"""Test head scores on a fixed batch, and classes of heads in a log."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import emergo.torch as et
from emergo import InputError
from emergo.measure import head_classes

from .models import WORDS, Block, Words, batch, loss_of


class FixedLength(nn.Module):
    """A model of token ids that reads sequences of one length only."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, 8))
        self.words = Words(Block("sdpa"))

    def forward(self, tokens):
        x = self.words.embed(tokens) + self.positions
        return self.words.readout(self.words.blocks[0](x))


class Looks(nn.Module):
    """One head that attends to the position before, more and more; reads vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        n, length, _ = x.shape
        query = torch.eye(length).roll(-1, 1)  # of the position before
        query = self.sharpness * query.expand(n, 1, length, length)
        key = torch.eye(length).expand(n, 1, length, length)
        return F.scaled_dot_product_attention(query, key, x[:, None])[:, 0]


def train(model, log, steps=3, inputs=batch, loss=loss_of, **options) -> pd.DataFrame:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with et.watch(model, log, every=1, **options) as watch:
        for step in range(steps):
            found = loss(model, inputs(step))
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            watch(found)
    return pd.read_csv(log)


@pytest.mark.parametrize("length", [6, 7])
def test_models_of_one_length_are_scored(tmp_path, capsys, length):
    inputs = lambda step: torch.randint(WORDS, (4, length))  # noqa: E731
    log = train(FixedLength(length), tmp_path / "log.csv", steps=5, inputs=inputs)
    assert "heads are not scored" not in capsys.readouterr().err
    scores = log.filter(like="_head_")
    assert scores.index[scores.notna().all(axis=1)].tolist() == [0, 4]
    scores = scores.iloc[::4]
    kinds = {str(name).rpartition("_head_")[0] for name in scores}
    assert kinds == {"previous_token", "duplicate_token", "induction", "first_token"}
    assert np.isfinite(scores).all(axis=None)
    assert ((scores > 0) & (scores < 1)).all(axis=None)


def test_a_head_enters_its_class_between_two_rows(tmp_path, capsys):
    """At sharpness s the weight on one of six keys is 1 / (1 + 5 exp(-s / √6))."""
    model = Looks()
    heads = et.HeadBatch(torch.randn(2, 6, 6), every=1)
    with et.watch(model, tmp_path / "log.csv", every=1, heads=heads) as watch:
        for _ in range(12):
            model(torch.randn(4, 6, 6)).sum().backward()
            watch()
            with torch.no_grad():
                model.sharpness.add_(1)
    log = pd.read_csv(tmp_path / "log.csv")
    weight = 1 / (1 + 5 * np.exp(-np.arange(12) / 6**0.5))
    # The first position is left out of the mean.
    assert log["previous_token_head_0_0"].to_numpy() == pytest.approx(weight, abs=1e-5)
    (found,) = head_classes(log).to_dict("records")
    assert (found["class"], found["low"], found["high"]) == ("previous_token", 3, 4)
    assert "head 0.0 became a previous-token head at step 4 [3, 4]" in capsys.readouterr().err


def test_rows_that_are_far_apart_all_have_scores(tmp_path):
    """The step of a class lies between two scores, so blank rows make its interval wider."""
    model = Looks()
    with et.watch(
        model, tmp_path / "log.csv", every=100, heads=et.HeadBatch(torch.randn(2, 6, 6))
    ) as watch:
        for _ in range(801):
            model(torch.randn(4, 6, 6)).sum().backward()
            watch()
            with torch.no_grad():
                model.sharpness.add_(0.01)
    log = pd.read_csv(tmp_path / "log.csv")
    scored = log.dropna(subset="previous_token_head_0_0")
    assert scored["step"].tolist() == [0, 200, 400, 600, 800]
    (found,) = head_classes(log).to_dict("records")
    assert (found["low"], found["high"]) == (200, 400)


def test_relevant_positions_are_scored_for_models_without_tokens(tmp_path):
    marked = torch.tensor([[1], [3]])
    heads = et.HeadBatch(torch.randn(2, 6, 6), relevant={"marked": marked})
    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    inputs = lambda step: torch.randn(4, 6, 6)  # noqa: E731
    log = train(Looks(), tmp_path / "log.csv", 2, inputs, loss, heads=heads)
    assert log["marked_head_0_0"][0] == pytest.approx(1 / 6, abs=1e-5)  # six digits are logged
    assert not [name for name in log if "induction" in str(name)]


@pytest.mark.parametrize(
    ("relevant", "words"),
    [
        (
            torch.tensor([[1], [6]]),
            "must hold positions from 0 to 5, got 1 to 6",
        ),
        (
            torch.ones(3, 6, dtype=torch.bool),
            r"truth values \(2, 6\) or .*, got \(3, 6\)",
        ),
    ],
)
def test_wrong_relevant_positions_are_an_error(tmp_path, relevant, words):
    heads = et.HeadBatch(torch.randn(2, 6, 6), relevant=relevant)
    model = Looks()
    watch = et.watch(model, tmp_path / "log.csv", every=1, heads=heads)
    with watch, pytest.raises(InputError, match=words):
        model(torch.randn(4, 6, 6))
