"""What compiling a few programs takes, with the cache of programs empty, filled, or with nothing in
it but XLA's choices of kernels.

    python benchmarks/compilation.py OUT_FOLDER SECONDS [PROGRAMS] [STEPS]

The programs are the first of zucchet2025/fig14: of its paper preset on a GPU, of its smoke preset
on a CPU. Every row is a process of its own that trains all of their runs for so many steps. Writes
`compilation.csv` after every row and begins no new one when the time is up. `losses` is a digest of
all losses: the same in all rows where the same kernels were chosen.
"""

import collections
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = ("empty cache", "filled cache", "choices of kernels only")
NAMES = {
    "jaxpr_trace_duration": "trace_s",
    "jaxpr_to_mlir_module_duration": "lower_s",
    "backend_compile_duration": "compile_s",
}


def child(programs: int, steps: int) -> dict[str, Any]:
    """Trains in this process, and returns what it took."""
    begun = time.monotonic()
    import jax

    import emergo as em
    from emergo.core.json import digest
    from emergo.papers import find_figure, source_for
    from emergo.training._train import groups_of

    counts: collections.Counter[str] = collections.Counter()
    seconds: collections.Counter[str] = collections.Counter()
    jax.monitoring.register_event_listener(
        lambda event, **_: counts.update([event.rpartition("/")[2]])
    )
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: seconds.update({event.rpartition("/")[2]: duration_secs})
    )
    figure = find_figure("zucchet2025/fig14")
    platform = jax.default_backend()
    with tempfile.TemporaryDirectory() as folder:
        studies = figure.wanted(
            "paper" if platform == "gpu" else "smoke", source_for(figure, folder)
        )
    groups = groups_of(
        run for study in studies.values() for run in study.replace(steps=steps, threshold=None).runs
    )
    ready = time.monotonic()
    chunks: list[float] = []
    runs = [run for group in groups[:programs] for run in group]
    results = em.train(runs, progress=lambda now: chunks.append(time.monotonic() - ready))
    row: dict[str, Any] = {
        "train_s": time.monotonic() - ready,
        "start_s": ready - begun,
        "first_s": chunks[0],
    }
    row |= {name: seconds[event] for event, name in NAMES.items()}
    losses = digest(
        [[float(x) for x in result.curves["loss"]] for result in results if result.curves]
    )
    row |= {"read": counts["cache_hits"], "compiled": counts["cache_misses"], "losses": losses}
    return row | {
        "programs": min(programs, len(groups)),
        "runs": len(runs),
        "device": jax.devices()[0].device_kind,
    }


def main(out: Path, seconds: float, programs: int = 3, steps: int = 4000) -> None:
    begun = time.monotonic()
    rows = []
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "programs")
        for name in ROWS:
            if time.monotonic() - begun > seconds:
                return
            if "kernels" in name:
                for file in (file for file in place.iterdir() if file.is_file()):
                    file.unlink()
            rows.append({"row": name} | _run(place, programs, steps))
            with open(out / "compilation.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
            words = {k: f"{v:.1f}" if isinstance(v, float) else v for k, v in rows[-1].items()}
            print(f"[{time.monotonic() - begun:.0f} s]", words, flush=True)


def _run(place: Path, programs: int, steps: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--child", str(programs), str(steps)]
    kept = {
        name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"
    }
    done = subprocess.run(
        command,
        env=kept | {"EMERGO_CACHE": str(place), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    if len(sys.argv) < 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    if sys.argv[1] == "--child":
        print(json.dumps(child(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(Path(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))
