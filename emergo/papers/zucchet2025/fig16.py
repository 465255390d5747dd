"""Figure 16: how repetition speeds recall up on the training distribution. The runs of Figure 5."""

from ...studies import provenance_of
from .._figure import Check, Figure, Outcome
from .._recall import recall_curves
from .._source import RunSource, distinct_results
from .fig5 import BY, CAVEAT, LEARNED, LEVEL, PRESETS, Settings, draw, speed_up, times


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    table = times(parts)
    checks = []
    for part in parts:
        gain = speed_up(table, part, "train")
        if gain is None:
            continue
        name = f"largest gain by {BY[part]} (at {gain.amount:g}) of the steps to a training accuracy of {LEVEL:.0%}"
        checks.append(Check(name, gain.interval, "above 1", bool(gain.times > 1)))
        for kind, level in (("train", LEVEL), ("learned", LEARNED)):
            means = table[table["part"] == part].groupby("amount")[kind].mean()
            slowest = float((means.iloc[1:].to_numpy() / means.iloc[:-1].to_numpy()).max())
            name = f"largest ratio of the steps to {level:.0%} at neighbouring amounts of {BY[part]}"
            checks.append(Check(name, slowest, "below 1: more is faster", bool(slowest < 1.05)))
    return Outcome(
        tables={"times": table, "curves": recall_curves(distinct_results(parts))},
        plot=draw(parts, "accuracy_repeated"),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


FIGURE = Figure(
    id="zucchet2025/fig16",
    title="repetition speeds recall up on the training distribution",
    presets=PRESETS,
    make=make,
    studies=Settings.studies,
    curves=True,
    seconds={"paper": 3e6, "laptop": 110, "smoke": 12},
    caveat=CAVEAT,
)
