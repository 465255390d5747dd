"""Are the stages of the full Transformer the same with products in tf32 as in fp32? Figure 8 of yuksel2026, its first steps,
with dropout in every one.

    python benchmarks/chain_precision.py OUT_FOLDER [STEPS SEEDS]

Writes `chain_precision.csv`: a row a precision and seed (same start, same data), with the ends of its plateaus and its exact KL
from the teacher at the last step. On a GPU; a CPU has no tf32.
"""

import dataclasses
import sys
from pathlib import Path

import jax
import pandas as pd

from emergo.engine import Run, train
from emergo.measure import find_stages
from emergo.papers import FIGURES


def main(out: Path, steps: int = 600, seeds: int = 3) -> None:
    figure = FIGURES["yuksel2026/fig8"]
    assert figure.runs is not None
    settings = figure.presets["paper"]
    model, rows = settings.training.full(), []
    for precision in ("fp32", "tf32"):
        runs = [
            Run(dataclasses.replace(run.config, model=model, precision=precision, steps=steps), run.seed)
            for run in figure.runs(settings)[:seeds]
        ]
        for history in train(runs):
            curves = history.curves
            drops = find_stages(curves["step"], curves["excess"])
            times = {f"plateau_{i + 1}": drop.onset for i, drop in enumerate(drops)}
            row = {"precision": precision, "seed": history.run.seed, "steps": steps} | times
            rows.append(row | {"excess": float(curves["excess"][-1]), "device": history.device, "jax": jax.__version__})
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(out / "chain_precision.csv", index=False)
    print(pd.DataFrame(rows).to_string(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(number) for number in sys.argv[2:]))
