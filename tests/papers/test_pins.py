"""The numbers of every figure at the paper preset equal the pinned ones, from the package's
records."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emergo.papers import FIGURES, RunSource, figure

pytestmark = pytest.mark.usefixtures("fast_paths")

FILE = Path(__file__).parent / "paper_preset.json"
PINNED = json.loads(FILE.read_text())
README = Path(__file__).parents[2] / "README.md"
# Figures that integrate, fit or judge forecasts for over 5 s.
SLOW = {
    "zucchet2025/fig1",
    "yuksel2026/fig10",
    "emergo/coupled",
    "emergo/escape",
    "emergo/forecast",
    "emergo/reduction",
}
WHOLE = "--xla_cpu_parallel_codegen_split_count=1"
QUICK = f"--xla_cpu_use_fusion_emitters=false {WHOLE}"
APART = {"emergo/schedule": WHOLE, "emergo/stages": QUICK}
"""Figures that integrate for so long that optimized programs pay, with XLA's flags. Programs
compile faster in one part and without fusion emitters, but without emitters the eighth digit of the
first figure changes."""
NOISE = {
    # 4e-9, a difference of two integrations, of the size of their errors.
    "emergo/reduction": {"checks[0].measured": 1e-10},
    # Derived from means in fp32 over the data.
    "emergo/stages": {"checks[4].measured": 1e-6, "checks[7].measured": 1e-7},
    # Derived exponents are slopes of numbers integrated to 1e-6 by SciPy.
    "emergo/exponents": {"checks": 1e-4, "summary": 1e-4},
    # SciPy's nonlinear least squares stops at a relative change of 1e-8. Where it stops depends on
    # the processor's linear algebra.
    "emergo/offset": {"checks": 1e-5, "summary": 1e-5},
}
"""Numbers whose last digits depend on how programs are compiled or on the processor, with their
tolerance. Tests compile without LLVM's optimizations."""
TRAINED = "zucchet2025/fig9"
HERE = [id for id in FIGURES if id not in (TRAINED, *APART)]
BY_SEED = {
    "plateau": [
        1.0809435659948219,
        1.0573272743619773,
        1.0771866188784676,
        1.1598225801661644,
        1.0935076776657897,
    ],
    "attention": [
        0.9635682467573752,
        0.9670649976004541,
        0.9629357411993311,
        0.9664801523338893,
        0.9642116907429719,
    ],
}
"""Plateau and final attention of the five seeds of Figure 9, relative to the flow."""
SYMBOLS = {"T": "length", "d": "dim", "B": "burst", "tokens": "vocabulary", "pairs": "pairs"}
"""The symbols of the README for the factors of a law."""


def differences(
    pinned: Any,
    now: Any,
    where: str,
    tolerance: float = 1e-9,
    noise: Mapping[str, float] | None = None,
) -> list[str]:
    """List the differences between two trees of plain data.

    Numbers may differ by a relative tolerance, and those in `noise` by an absolute one; anything
    else must be equal.
    """
    if (
        isinstance(pinned, int | float)
        and isinstance(now, int | float)
        and bool not in (type(pinned), type(now))
    ):
        off = max([1e-12, *(off for path, off in (noise or {}).items() if where.startswith(path))])
        near = math.isclose(pinned, now, rel_tol=tolerance, abs_tol=off)
        return [] if near else [f"{where}: {pinned!r} became {now!r}"]
    if isinstance(pinned, dict) and isinstance(now, dict) and pinned.keys() <= now.keys():
        pairs = [(f"{where}.{key}", pinned[key], now[key]) for key in pinned]
    elif isinstance(pinned, list) and isinstance(now, list) and len(pinned) == len(now):
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(pinned, now, strict=True))]
    else:
        return [] if pinned == now else [f"{where}: {pinned!r} became {now!r}"]
    return [
        line
        for path, one, other in pairs
        for line in differences(one, other, path, tolerance, noise)
    ]


def test_every_figure_is_pinned():
    assert set(PINNED) == {*FIGURES}


def optimized(code: str, flags: str = "") -> Any:
    """Return the output of a process that optimizes its programs, as a user's does.

    Long computations are faster then, and rounded like the pinned ones.
    """
    environment = os.environ | {"XLA_FLAGS": flags}
    code = f"import gc; gc.set_threshold(20_000, 20, 20)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_pins(id, laws, checks, summary):
    noise = NOISE.get(id)
    assert differences(PINNED[id]["laws"], laws, "laws", noise=noise) == []
    assert differences(PINNED[id]["checks"], checks, "checks", noise=noise) == []
    assert differences(PINNED[id].get("summary", {}), summary, "summary", noise=noise) == []


REFUSE = """
import json
from emergo.papers import RunSource, figure

def refuse(source, runs):
    raise AssertionError(f"{len(runs)} runs are not recorded")

RunSource._train = refuse
"""


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=pytest.mark.slow if id in SLOW else ()) for id in HERE]
)
@pytest.mark.usefixtures("unchecked")
def test_the_paper_preset_gives_the_pinned_numbers(id, monkeypatch):
    def refuse(source, runs):
        raise AssertionError(f"{len(runs)} runs are not recorded")

    monkeypatch.setattr(RunSource, "_train", refuse)
    made = figure(id, train=True)
    check_pins(id, made.laws, made.checks, made.report["summary"])


@pytest.mark.slow
@pytest.mark.parametrize("id", APART)
def test_long_integrations_give_the_pinned_numbers(id):
    shown = "print(json.dumps([made.laws, made.checks, made.report['summary']]))"
    check_pins(id, *optimized(f"{REFUSE}made = figure({id!r}, train=True)\n{shown}", APART[id]))


FIGURE_9 = """
import json
from emergo.papers import RunSource
from emergo.papers.zucchet2025.fig6_10 import Settings, make_9

made = make_9(Settings(seeds=1), RunSource())
print(json.dumps([check.describe() for check in made.checks]))
"""


@pytest.mark.slow
def test_what_is_trained_now_gives_the_pinned_numbers():
    """Train the first seed, which does not depend on the others, in a process with optimized
    programs."""
    passed, count, end = (dict(check) for check in PINNED[TRAINED]["checks"])
    assert np.mean(BY_SEED["plateau"]) == pytest.approx(passed["measured"], rel=1e-9)
    assert min(BY_SEED["attention"]) == pytest.approx(end["measured"], rel=1e-9)
    passed["measured"] = BY_SEED["plateau"][0]
    end["measured"] = BY_SEED["attention"][0]
    count |= {"measured": 1, "published": 1}
    now = optimized(FIGURE_9, QUICK)
    # fp32 differs between processors.
    assert differences([passed, count, end], now, "checks", tolerance=1e-3) == []


def test_differences_are_noticed():
    law = PINNED["zucchet2025/fig3"]["laws"][0]
    assert differences(law, law, "law") == []
    assert differences(law, law | {"C": law["C"] * (1 + 1e-8)}, "law") == [
        f"law.C: {law['C']!r} became {law['C'] * (1 + 1e-8)!r}"
    ]
    assert len(differences(law, law | {"verdict": "undecided", "exponents": {}}, "law")) == 2


def printed_laws(text):
    """Yield the laws of a text such as `0.89 d^1.27 (T/B)^0.78, R² 0.990`, as printed.

    A law is its constant, exponents and R². Code blocks are left out, because what they fit need
    not belong to a figure.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    factor = r"(?:[A-Za-z]+|\([A-Za-z]/[A-Za-z]\))\^-?\d+\.\d+"
    for constant, factors, r2 in re.findall(
        rf"(?<![\w.^-])(\d+\.\d+)((?: {factor})+)(?:, R² (\d\.\d+))?", text
    ):
        exponents = {}
        for over, under, single, power in re.findall(
            r"(?:\(([A-Za-z])/([A-Za-z])\)|([A-Za-z]+))\^(-?\d+\.\d+)", factors
        ):
            exponents[SYMBOLS.get(over or single, single)] = power
            if under:
                exponents[SYMBOLS.get(under, under)] = (
                    power[1:] if power.startswith("-") else f"-{power}"
                )
        yield constant, exponents, r2


def agrees_as_printed(law, constant, exponents, r2):
    def printed(number, as_this):
        return f"{number:.{len(as_this.partition('.')[2])}f}" == as_this

    return (
        law["exponents"].keys() == exponents.keys()
        and printed(law["C"], constant)
        and all(printed(law["exponents"][name], power) for name, power in exponents.items())
        and (not r2 or printed(law["r2"], r2))
    )


def test_the_laws_that_the_readme_prints_are_pinned():
    pinned = [law for made in PINNED.values() for law in made["laws"]]
    pinned += [law["with_censored"] for law in pinned if "with_censored" in law]
    known = pinned + [law["published"] for law in pinned if law.get("published")]
    laws = list(printed_laws(README.read_text()))
    assert len([law for law in laws if any(agrees_as_printed(own, *law) for own in pinned)]) >= 1, (
        "too few to be read well"
    )
    assert [law for law in laws if not any(agrees_as_printed(other, *law) for other in known)] == []


def pin(*ids: str) -> None:
    """Pin the current numbers of figures: `python -m tests.papers.test_pins emergo/schedule`.

    Use it for new figures, and for numbers that change on purpose, which the changelog then
    explains.
    """
    now = {}
    for id in ids:
        made = figure(id, train=True)
        now[id] = {"laws": made.laws, "checks": made.checks}
        now[id] |= {"summary": made.report["summary"]} if made.report["summary"] else {}
    pins = {id: now.get(id, PINNED.get(id)) for id in FIGURES if id in now or id in PINNED}
    FILE.write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    pin(*sys.argv[1:])
