"""Fig. 9 at the paper's size with both ways to train: do the plateaus have one distribution, and
what does each way cost?

    python benchmarks/toy_draws.py OUT_FOLDER [SEEDS]

`statistics` draws what the gradient reads (`emergo.papers.train_toy`); `tokens` draws whole
sequences and trains the same model like any other (`emergo.training.train`). Writes
`toy_draws.csv`, one row per run; on a GPU both take some minutes.
"""

import sys
import time
from pathlib import Path

import jax
import pandas as pd
from scipy.stats import ks_2samp

from emergo import theory
from emergo.measure import emergence
from emergo.models import ToyAttention
from emergo.papers import toy_probe, train_toy
from emergo.tasks import SingleLocation
from emergo.training import Config, Optimizer, Run, train

STEPS = 9000
EVERY = 30
TASK = SingleLocation(256, 256)


def statistics(seeds: int) -> list[tuple]:
    curves = train_toy(TASK, toy_probe(), seeds=seeds, steps=STEPS, every=EVERY)
    return [(curves.step, loss) for loss in curves.values["loss"]]


def tokens(seeds: int) -> list[tuple]:
    sgd = Optimizer("sgd", learning_rate=1.0)
    config = Config(
        TASK, ToyAttention(), sgd, steps=STEPS, threshold=None, n_test=1024, precision="fp32"
    )
    results = train([Run(config, seed) for seed in range(seeds)])
    return [
        (result.curves["step"], result.curves["loss"])
        for result in results
        if result.curves is not None
    ]


def main(out: Path, seeds: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    flow = float(theory.plateau(theory.cells(256, 256)).time)
    common = {
        "length": 256,
        "dim": 256,
        "flow_plateau": flow,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    rows = []
    for way in (statistics, tokens):
        start = time.perf_counter()
        curves = way(seeds)
        seconds = time.perf_counter() - start  # compilation included
        for seed, (step, loss) in enumerate(curves):
            plateau = emergence(step, loss, theory.THRESHOLD * float(loss[0]))
            row = {
                "draws": way.__name__,
                "seed": seed,
                "plateau": plateau.time,
                "state": plateau.state,
            }
            rows.append(common | row | {"ms_per_step_all_seeds": 1000 * seconds / STEPS})
        print(way.__name__, f"{seconds:.1f} s", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(out / "toy_draws.csv", index=False)
    print(
        table.groupby("draws")[["plateau", "ms_per_step_all_seeds"]]
        .agg(["mean", "std"])
        .to_string()
    )
    one, two = (table[table["draws"] == way]["plateau"] for way in ("statistics", "tokens"))
    print(f"flow {flow:.0f}; two-sample Kolmogorov-Smirnov p = {ks_2samp(one, two).pvalue:.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 32)
