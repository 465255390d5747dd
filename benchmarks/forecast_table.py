"""Fit the calibration of forecasts to recorded runs and write `emergo/forecasting/forecast.json`.

python benchmarks/forecast_table.py            write the table; takes under a minute
python benchmarks/forecast_table.py --check    exit with 1 if the table is out of date
"""

import json
import sys

from emergo.core.files import atomic_write
from emergo.forecasting._table import EDGES, FILE, LEVELS, fit_table
from emergo.forecasting.experiment._moments import SIZES, fit_moments
from emergo.forecasting.experiment.figure import recorded_runs
from emergo.papers import RunSource
from emergo.store import read_records


def rounded(data):
    """Round all floats to four decimals."""
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return round(data, 4) if isinstance(data, float) else data


followed = recorded_runs(RunSource("emergo/forecast", records=read_records()))
followed = [run for run in followed if run.group == SIZES]
moments = fit_moments(followed)
table = {
    "made by": "python benchmarks/forecast_table.py",
    "runs": len(followed),
    "sizes": len({run.block for run in followed}),
    "levels": LEVELS,
    "edges": EDGES,
    "kinds": rounded(fit_table(moments)),
}
if "--check" in sys.argv[1:]:
    current = json.loads(FILE.read_text()) == json.loads(json.dumps(table))
    sys.exit(0 if current else f"{FILE} differs from what the records give")
atomic_write(FILE, (json.dumps(table, indent=1) + "\n").encode())
print(f"{FILE}: {len(followed)} runs, {len(moments)} moments, kinds {', '.join(table['kinds'])}")
