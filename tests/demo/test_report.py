import json
import re

import numpy as np
import pandas as pd
import pytest
import vl_convert

from emergo.demo import DemoSettings, run_demo
from emergo.measure import fit_table
from emergo.study import Watcher


@pytest.mark.slow
def test_demo_writes_one_page_that_needs_no_network(tmp_path):
    stages = []

    class Noted(Watcher):
        def __call__(self, what, share, detail=""):
            stages.append((what, share))

    small = DemoSettings(lengths=(16, 32), dims=(8, 16), bursts=(4,), seeds=2, points=40)
    report = run_demo(tmp_path, Noted(), small)
    text = (tmp_path / "report.html").read_text()
    assert report["files"] == [str(tmp_path / "report.html")]
    assert report["runs"] == 10
    assert report["transformer"]["attention"] > 0.9
    assert set(report["law"]["exponents"]) == {"length", "dim"}
    assert {s for s, _ in stages} == {"training and integrating", "fitting the law"}
    assert [share for what, share in stages if what == "training and integrating"][
        -1
    ] == pytest.approx(1.0)
    # Nothing is loaded from elsewhere, the bundle and four charts are inside, and nothing ends a
    # script element early.
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", page)
    assert not re.search(r"\bnan\b", page.lower())
    assert text.count("</script>") == 2
    assert "vegaEmbed" in text
    charts, datasets = (
        re.search(rf"const {name} = (.*?\}});?\n(?=const|for)", text, re.S)
        for name in ("charts", "datasets")
    )
    watched = re.search(r"const watched = (.*);\n", text)
    assert watched is not None
    assert len(json.loads(watched[1])["maps"]) > 10, "frames of the animation"
    assert charts is not None
    assert datasets is not None
    shown = json.loads(charts[1])
    assert (
        re.findall('class="chart" id="(.*?)"', page)
        == list(shown)
        == ["loss", "order", "law", "burst"]
    )
    tables = json.loads(datasets[1])
    assert tables["flow"][-1]["step"] == max(row["step"] for row in tables["curves"]), (
        "theory goes as far as the runs"
    )
    assert all(
        1 < len(shown[name]["encoding"]["y"]["axis"]["values"]) < 18 for name in ("law", "burst")
    )
    for chart in shown.values():
        svg = vl_convert.vegalite_to_svg(json.dumps(chart | {"width": 600, "datasets": tables}))
        assert "mark-line" in svg
        assert "NaN" not in svg


def test_fit_table_writes_law_and_plot(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(T, d) for T in (16, 32, 64) for d in (4, 8) for _ in range(3)]
    table = pd.DataFrame(rows, columns=["length", "dim"])
    table["plateau"] = (
        3 * table["length"] * np.sqrt(table["dim"]) * np.exp(0.05 * rng.normal(size=len(table)))
    )
    table.assign(censored=table["plateau"] > 400).to_csv(tmp_path / "runs.csv", index=False)
    law = fit_table(tmp_path / "runs.csv", "plateau", ["dim", "length"], {}, tmp_path / "out", 200)
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "runs.law.json",
        "runs.law.png",
        "runs.law.svg",
    ]
    assert law["exponents"]["length"] == pytest.approx(1, abs=0.15)
    assert law["with_censored"]["exponents"]["length"] == pytest.approx(1, abs=0.1)
    assert law["censored"] > 0
