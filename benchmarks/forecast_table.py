"""Fit the calibration of forecasts and write `emergo/forecasting/forecast.json`.

    python benchmarks/forecast_table.py

Reads the logs of the PyTorch models for calibration, and an eighth of emergo's own recorded runs,
chosen by identity. Takes ten seconds.
"""

import json

from emergo.core.files import atomic_write
from emergo.forecasting._table import FILE, fit_table
from emergo.forecasting.experiment._moments import (
    CALIBRATION,
    follow_logs,
    follow_own,
    moments_of,
    own_results,
)

moments = moments_of([*follow_logs(CALIBRATION), *follow_own(own_results(judged=False))])
table = {"made by": "python benchmarks/forecast_table.py", **fit_table(moments)}
rounded = json.loads(json.dumps(table), parse_float=lambda text: round(float(text), 4))
atomic_write(FILE, (json.dumps(rounded, indent=1) + "\n").encode())
print(f"{FILE}: {moments['run'].nunique()} runs, {len(moments)} moments")
