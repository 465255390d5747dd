"""Makes emergo/measure/forecast.json, the table that forecasts read, from the recorded runs that it is fitted to.

python benchmarks/forecast_table.py            writes it; under a minute
python benchmarks/forecast_table.py --check    says whether what is there is what the records give
"""

import json
import sys

from emergo._files import atomic_write
from emergo.measure._forecast_table import EDGES, FILE, LEVELS, fit_table, table_data
from emergo.papers import RunSource
from emergo.papers.emergo._forecast_moments import SIZES, block_of, fit_moments
from emergo.papers.emergo.forecast import recorded_runs
from emergo.studies import read_records

followed = [run for run in recorded_runs(RunSource("emergo/forecast", records=read_records())) if run.group == SIZES]
moments = fit_moments(followed)
kinds = table_data(fit_table(moments))
about = {
    "made by": "python benchmarks/forecast_table.py",
    "runs": len(followed),
    "sizes": len({block_of(run.sizes) for run in followed}),
}
text = json.dumps(about | {"levels": LEVELS, "edges": EDGES, "kinds": kinds}, indent=1) + "\n"
if "--check" in sys.argv[1:]:
    sys.exit(0 if FILE.read_text() == text else "emergo/measure/forecast.json is not what the records give")
atomic_write(FILE, text.encode())
print(f"{FILE}: {len(followed)} runs, {len(moments)} moments, kinds {', '.join(kinds)}")
