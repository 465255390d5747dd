"""A fitted law beside a published one."""

import pytest

from emergo.measure import Published, compare, fit_law

from .synthetic import synthetic


@pytest.mark.parametrize(
    ("printed", "agrees", "word"),
    [
        (Published("right", 2.0, {"length": 0.8, "dim": 1.3}), True, "within"),
        (Published("steeper", 2.0, {"length": 1.2, "dim": 1.3}), False, "exponent of length"),
        (Published("twice", 4.0, {"length": 0.8, "dim": 1.3}), False, "level 0.5"),
    ],
)
def test_agreement_with_a_published_law(printed, agrees, word):
    table = synthetic(0, noise=0.05)
    agreement = compare(fit_law(table), table, printed)
    assert agreement.agrees is agrees
    assert word in agreement.why


def test_a_published_law_at_some_values():
    assert Published("a", 2.0, {"length": 0.5, "dim": 2.0}).at(length=16, dim=3) == pytest.approx(72)
