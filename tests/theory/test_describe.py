import pytest

from emergo import theory
from emergo._errors import InputError


def test_one_cell_in_numbers():
    found = theory.describe_cell(512, 64)
    assert found["plateau"] == pytest.approx(5319.27, rel=1e-5)
    assert found["censored"] is False
    assert found["predicted"] == pytest.approx(1.2533 * 8 * 512, rel=1e-4)
    assert found["rate"] == pytest.approx(1 / (8 * 512), rel=0.1)
    assert found["escape_linear"] == pytest.approx(17997.35, rel=1e-5)


def test_the_full_model_follows_the_exact_flow():
    full, exact = (theory.describe_cell(16, 4, 3, 0.2, flow) for flow in ("full", "exact"))
    assert full["plateau"] == pytest.approx(exact["plateau"], rel=1e-6)
    assert full["rate"] == exact["rate"]


def test_a_model_too_large_to_integrate_is_refused():
    with pytest.raises(InputError, match="use the exact flow"):
        theory.describe_cell(64, 10_000, flow="full")
