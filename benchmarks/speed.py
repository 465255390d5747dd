"""Time training against PyTorch; the rows of docs/speed.md first.

    python benchmarks/speed.py OUT_FOLDER SECONDS

Writes `speed.csv` after every row and begins no new one when the time is up.
"""

import sys
import time
from pathlib import Path

import jax
import pandas as pd

from benchmarks.training import bench_training, default_cases, main_cases

SHOWN = (
    "layers",
    "heads",
    "length",
    "dim",
    "runs",
    "precision",
    "ms",
    "torch_ms",
    "torch_compile_ms",
    "expert_ms",
    "ratio",
)
SHOWN += ("ratio_expert", "share_of_floor", "share_of_roofline", "share_of_drawing", "program_gb")


def main(out: Path, seconds: float) -> None:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    cases = default_cases(jax.default_backend())
    main_rows = len(main_cases(jax.default_backend()))
    rows = []
    for part, peers in ((cases[:main_rows], True), (cases[main_rows:], False)):
        for row in bench_training(part, peers):
            rows.append(row | {"jax": jax.__version__})
            pd.DataFrame(rows).to_csv(out / "speed.csv", index=False)
            words = {
                k: f"{row[k]:.4g}" if isinstance(row.get(k), float) else row.get(k) for k in SHOWN
            }
            print(f"[{time.monotonic() - begun:.0f} s]", words, flush=True)
            if time.monotonic() - begun > seconds:
                return


if __name__ == "__main__":
    if len(sys.argv) < 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), float(sys.argv[2]))
