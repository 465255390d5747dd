"""Fig. 9 at the paper's size with both ways to draw the data: are the plateaus of one law, and what does each cost?

    python benchmarks/toy_draws.py OUT_FOLDER [SEEDS]

Writes `toy_draws.csv`, one row a run, after each way; on a GPU both take about a minute.
"""

import sys
import time
from pathlib import Path

import jax
import pandas as pd
from scipy.stats import ks_2samp

from emergo import theory
from emergo.engine import train_toy
from emergo.measure import emergence
from emergo.papers import toy_probe
from emergo.tasks import SingleLocation


def main(out: Path, seeds: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    task = SingleLocation(256, 256)
    flow = float(theory.plateau(theory.cells(256, 256)).time)
    rows = []
    for draws in ("statistics", "tokens"):
        train_toy(task, toy_probe(), seeds=seeds, steps=30, every=30, draws=draws)  # compile
        start = time.perf_counter()
        seen = train_toy(task, toy_probe(), seeds=seeds, steps=9000, every=30, draws=draws)
        seconds = time.perf_counter() - start
        for seed, loss in enumerate(seen.values["loss"]):
            found = emergence(seen.step, loss, theory.THRESHOLD * loss[0])
            rows.append(
                {
                    "length": 256,
                    "dim": 256,
                    "draws": draws,
                    "seed": seed,
                    "plateau": found.time,
                    "censored": found.censored,
                    "state": found.state,
                    "flow_plateau": flow,
                    "ms_per_step_all_seeds": 1000 * seconds / 9000,
                    "device": jax.devices()[0].device_kind,
                    "jax": jax.__version__,
                }
            )
        table = pd.DataFrame(rows)
        table.to_csv(out / "toy_draws.csv", index=False)
        print(draws, f"{seconds:.1f} s", flush=True)
    print(table.groupby("draws")[["plateau", "ms_per_step_all_seeds"]].agg(["mean", "std"]).to_string())
    one, two = (table[table["draws"] == d]["plateau"] for d in ("statistics", "tokens"))
    print(f"flow {flow:.0f}; two-sample Kolmogorov-Smirnov p = {ks_2samp(one, two).pvalue:.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 32)
