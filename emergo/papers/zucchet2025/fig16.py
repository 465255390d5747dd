"""Figure 16: how repetition speeds recall up on the training distribution. The runs of Figure 5."""

from ...studies import provenance_of
from .._figure import Check, Figure, Outcome
from .._recall import recall_curves
from .._work import Work
from .fig5 import BY, LEARNED, LEVEL, PRESETS, SHRUNK, Settings, draw, runs, speed_up, times


def make(settings: Settings, work: Work) -> Outcome:
    parts = work.by_part(settings.parts(), curves=True)
    table = times(parts)
    checks = []
    for part in parts:
        found = speed_up(table, part, "train")
        if found is None:
            continue
        name = f"largest gain by {BY[part]} (at {found.amount:g}) of the steps to a training accuracy of {LEVEL:.0%}"
        checks.append(Check(name, found.interval, "above 1", bool(found.times > 1)))
        for kind, level in (("train", LEVEL), ("learned", LEARNED)):
            means = table[table["part"] == part].groupby("amount")[kind].mean()
            slowest = float((means.iloc[1:].to_numpy() / means.iloc[:-1].to_numpy()).max())
            name = f"largest ratio of the steps to {level:.0%} at neighbouring amounts of {BY[part]}"
            checks.append(Check(name, slowest, "below 1: more is faster", bool(slowest < 1.05)))
    return Outcome(
        tables={"times": table, "curves": recall_curves(list({r.run.identity: r for p in parts.values() for r in p}.values()))},
        plot=draw(parts, "accuracy_repeated"),
        checks=checks,
        precision=settings.training.precision,
        device=provenance_of(parts),
    )


FIGURE = Figure(
    id="zucchet2025/fig16",
    shows="repetition speeds recall up on the training distribution",
    presets=PRESETS,
    make=make,
    runs=runs,
    seconds={"paper": 3e6, "laptop": 110, "smoke": 20},
    shrunk=SHRUNK,
)
