"""The numbers of every figure at the paper preset are those that version one gave, from the records that ship."""

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

FILE = Path(__file__).parent / "paper_preset.json"
PINNED = json.loads(FILE.read_text())
README = Path(__file__).parents[2] / "README.md"
SLOW = {"zucchet2025/fig1", "emergo/escape", "yuksel2026/fig10", "emergo/reduction", "emergo/coupled"}
SLOW |= {"emergo/forecast"}
"""Figures that integrate, fit or judge forecasts for over 5 s."""
QUICK = "--xla_cpu_use_fusion_emitters=false"
APART = {"emergo/schedule": "", "emergo/stages": QUICK}
"""Figures that integrate for so long that what optimizes programs pays, with XLA's flags: without fusion emitters programs are
compiled sooner, but the eighth digit of the first is another."""
NOISE = {
    "emergo/reduction": {"checks[0].measured": 1e-10},  # 4e-9, the difference of two integrations: what their errors leave
    # Derived from signals of the data, which are means in fp32: the exponents less these, and the time over this.
    "emergo/stages": {"checks[4].measured": 1e-6, "checks[7].measured": 1e-7},
}
"""Numbers whose last digits depend on how programs are compiled, and how far they may be off; tests compile without LLVM's
optimizations."""
TRAINED = "zucchet2025/fig9"
HERE = [id for id in FIGURES if id not in (TRAINED, *APART)]
BY_SEED = {
    "plateau": [1.0809435659948219, 1.0573272743619773, 1.0771866188784676, 1.1598225801661644, 1.0935076776657897],
    "attention": [0.9635682467573752, 0.9670649976004541, 0.9629357411993311, 0.9664801523338893, 0.9642116907429719],
}
"""Of Figure 9, which trains five seeds whenever it is made: plateau, and attention at the end, over those of the flow."""
SYMBOLS = {"T": "length", "d": "dim", "B": "burst", "tokens": "vocabulary", "pairs": "pairs"}
"""What the README calls the factors of a law."""


def differences(
    pinned: Any, now: Any, where: str, tolerance: float = 1e-9, noise: Mapping[str, float] | None = None
) -> list[str]:
    """Where two trees of plain data differ: in numbers by more than a relative tolerance, in `noise` by more than an absolute
    one too, in anything else at all."""
    if isinstance(pinned, int | float) and isinstance(now, int | float) and bool not in (type(pinned), type(now)):
        off = max([1e-12, *(off for path, off in (noise or {}).items() if where.startswith(path))])
        near = math.isclose(pinned, now, rel_tol=tolerance, abs_tol=off)
        return [] if near else [f"{where}: {pinned!r} became {now!r}"]
    if isinstance(pinned, dict) and isinstance(now, dict) and pinned.keys() == now.keys():
        pairs = [(f"{where}.{key}", pinned[key], now[key]) for key in pinned]
    elif isinstance(pinned, list) and isinstance(now, list) and len(pinned) == len(now):
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(pinned, now, strict=True))]
    else:
        return [] if pinned == now else [f"{where}: {pinned!r} became {now!r}"]
    return [line for path, one, other in pairs for line in differences(one, other, path, tolerance, noise)]


def test_every_figure_is_pinned():
    assert set(PINNED) == set(FIGURES)


def optimized(code: str, flags: str = "") -> Any:
    """What a process prints whose programs are optimized, as for a user: long computations are faster then, and rounded as the
    pinned ones."""
    environment, code = os.environ | {"XLA_FLAGS": flags}, f"import gc; gc.set_threshold(20_000, 20, 20)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_pins(id, laws, checks, summary):
    assert differences(PINNED[id]["laws"], laws, "laws") == []
    assert differences(PINNED[id]["checks"], checks, "checks", noise=NOISE.get(id)) == []
    assert differences(PINNED[id].get("summary", {}), summary, "summary") == []


REFUSE = """
import json
from emergo.papers import RunSource, figure

def refuse(source, runs):
    raise AssertionError(f"{len(runs)} runs are not recorded")

RunSource._train = refuse
"""


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.slow if id in SLOW else ()) for id in HERE])
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


@pytest.mark.slow
def test_what_is_trained_now_gives_the_pinned_numbers():
    """Of the first seed: it does not depend on the others. In a process that optimizes programs, which trains faster."""
    passed, count, end = (dict(check) for check in PINNED[TRAINED]["checks"])
    assert np.mean(BY_SEED["plateau"]) == pytest.approx(passed["measured"], rel=1e-9)
    assert min(BY_SEED["attention"]) == pytest.approx(end["measured"], rel=1e-9)
    passed["measured"], end["measured"] = BY_SEED["plateau"][0], BY_SEED["attention"][0]
    count |= {"measured": 1, "published": 1}
    code = "import json; from emergo.papers import RunSource; from emergo.papers.zucchet2025.fig6_10 import Settings, make_9; "
    code += "print(json.dumps([check.describe() for check in make_9(Settings(seeds=1), RunSource()).checks]))"
    now = optimized(code, QUICK)
    assert differences([passed, count, end], now, "checks", tolerance=1e-3) == []  # fp32 differs between processors


def test_differences_are_noticed():
    law = PINNED["zucchet2025/fig3"]["laws"][0]
    assert differences(law, law, "law") == []
    assert differences(law, law | {"C": law["C"] * (1 + 1e-8)}, "law") == [
        f"law.C: {law['C']!r} became {law['C'] * (1 + 1e-8)!r}"
    ]
    assert len(differences(law, law | {"agrees": not law["agrees"], "exponents": {}}, "law")) == 2


def printed_laws(text):
    """The laws of a text such as `0.89 d^1.27 (T/B)^0.78, R² 0.990`: constant, exponents and R², as they are printed.

    Blocks of code are left out: what they fit need not be a figure's.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    factor = r"(?:[A-Za-z]+|\([A-Za-z]/[A-Za-z]\))\^-?\d+\.\d+"
    for constant, factors, r2 in re.findall(rf"(?<![\w.^-])(\d+\.\d+)((?: {factor})+)(?:, R² (\d\.\d+))?", text):
        exponents = {}
        for over, under, single, power in re.findall(r"(?:\(([A-Za-z])/([A-Za-z])\)|([A-Za-z]+))\^(-?\d+\.\d+)", factors):
            exponents[SYMBOLS.get(over or single, single)] = power
            if under:
                exponents[SYMBOLS.get(under, under)] = power[1:] if power.startswith("-") else f"-{power}"
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
    known = pinned + [law["published"] for law in pinned if law["published"]]
    laws = list(printed_laws(README.read_text()))
    assert len([law for law in laws if any(agrees_as_printed(own, *law) for own in pinned)]) >= 3, "too few to be read well"
    assert [law for law in laws if not any(agrees_as_printed(other, *law) for other in known)] == []


def pin(*ids: str) -> None:
    """Pins the numbers that figures have now: `python -m tests.papers.test_pins emergo/schedule`. For figures that are new, or
    whose numbers were changed on purpose, which the log then says."""
    now = {}
    for id in ids:
        made = figure(id, train=True)
        now[id] = {"laws": made.laws, "checks": made.checks}
        now[id] |= {"summary": made.report["summary"]} if made.report["summary"] else {}
    pins = {id: now.get(id, PINNED.get(id)) for id in FIGURES if id in now or id in PINNED}
    FILE.write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    pin(*sys.argv[1:])
