"""Figure 16: on the training distribution repetition only speeds recall up. The runs of Figure 5."""

from ...studies import provenance_of
from .._figure import Check, Figure, Outcome
from .._recall import recall_curves
from .._work import Work
from .fig5 import BY, PRESETS, SHRUNK, Settings, draw, runs, speed_up, times


def make(settings: Settings, work: Work) -> Outcome:
    parts = work.by_part(settings.parts(), curves=True)
    table = times(parts)
    checks = []
    for part in parts:
        found = speed_up(table, part, "train")
        if found is None:
            continue
        gain, amount = found
        checks.append(
            Check(f"largest gain of training emergence by {BY[part]} (at {amount:g})", gain, "above 1", bool(gain > 1))
        )
        means = table[table["part"] == part].groupby("amount")["train"].mean()
        steps = (means.iloc[1:].to_numpy() / means.iloc[:-1].to_numpy()).max()
        checks.append(
            Check(
                f"largest ratio of neighbouring amounts of {BY[part]}",
                float(steps),
                "below 1: more is faster",
                bool(steps < 1.05),
            )
        )
    return Outcome(
        tables={"times": table, "curves": recall_curves(list({r.run.identity: r for p in parts.values() for r in p}.values()))},
        plot=draw(parts, "accuracy_repeated"),
        checks=checks,
        precision=settings.training.precision,
        device=provenance_of(parts),
    )


FIGURE = Figure(
    id="zucchet2025/fig16",
    shows="on the training distribution repetition only speeds recall up",
    presets=PRESETS,
    make=make,
    runs=runs,
    seconds={"paper": 3e6, "laptop": 110, "smoke": 20},
    shrunk=SHRUNK,
)
