"""Puts records that were trained elsewhere into results/.

    python benchmarks/merge.py FOLDER [FOLDER ...]

Every `NAME.runs.parquet` of the folders, with the curves beside it, goes into the tables of that name in results/; runs that
are there already are replaced.
"""

import sys
from pathlib import Path

import pandas as pd

from emergo.studies import write_records

RESULTS = Path(__file__).parents[1] / "results"


def main(folders: list[Path]) -> None:
    paths = [path for folder in folders for path in sorted(folder.glob("*.runs.parquet"))]
    if not paths:
        sys.exit(f"no records (*.runs.parquet) in {', '.join(map(str, folders))}")
    for path in paths:
        name = path.name.removesuffix(".runs.parquet")
        runs, curves = (pd.read_parquet(path.with_name(f"{name}.{kind}.parquet")) for kind in ("runs", "curves"))
        if len(runs):
            write_records(runs, curves, RESULTS, name)
        print(f"{path}: {len(runs)} runs")


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
