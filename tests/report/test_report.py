import re

import numpy as np
import pandas as pd
import pytest

from emergo.report import DemoSettings, Page, fit_table, run_demo


@pytest.mark.slow
def test_demo_writes_one_page_that_needs_no_network(tmp_path):
    stages = []
    small = DemoSettings(lengths=(16, 32), dims=(8, 16), bursts=(4,), seeds=2, points=40)
    report = run_demo(tmp_path, small, lambda what, share, detail="": stages.append((what, share)))
    text = (tmp_path / "report.html").read_text()
    assert report["files"] == [str(tmp_path / "report.html")]
    assert report["runs"] == 10
    assert set(report["law"]["exponents"]) == {"length", "dim"}
    assert {s for s, _ in stages} >= {"integrating the flows", "fitting the law"}
    # Nothing is loaded from elsewhere, and the bundle and four charts are inside.
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", page)
    assert text.count("vega-lite/v") >= 4
    assert text.count('class="chart"') == 4
    assert "vegaEmbed" in text
    assert not re.search(r"\bnan\b", page.lower())


def test_page_escapes_values_and_does_not_end_its_script_early():
    import altair as alt

    page = Page("a < b", "lead")
    page.table(["x"], [["<script>alert(1)</script>"]])
    page.chart(alt.Chart(pd.DataFrame({"x": ["</script>"]})).mark_point().encode(x="x:N"), "caption")
    text = page.html("end")
    assert "<title>a &lt; b</title>" in text
    assert "&lt;script&gt;alert(1)" in text
    assert '"x": "</script>"' not in text


def table():
    rng = np.random.default_rng(0)
    rows = [(T, d) for T in (16, 32, 64) for d in (4, 8) for _ in range(3)]
    frame = pd.DataFrame(rows, columns=["length", "dim"])
    frame["plateau"] = 3 * frame["length"] * np.sqrt(frame["dim"]) * np.exp(0.05 * rng.normal(size=len(frame)))
    return frame.assign(censored=frame["plateau"] > 400)


def test_fit_table_writes_law_and_plot(tmp_path):
    law = fit_table(table(), "plateau", ["dim", "length"], {}, tmp_path, "runs")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["runs.law.json", "runs.law.png", "runs.law.svg"]
    assert law["exponents"]["length"] == pytest.approx(1, abs=0.15)
    assert law["with_censored"]["exponents"]["length"] == pytest.approx(1, abs=0.1)
    assert law["censored"] > 0
