import re

import numpy as np
import pandas as pd
import pytest

from emergo.measure import fit_law
from emergo.report import DemoSettings, Page, fit_table, law_plot, run_demo


@pytest.mark.slow
def test_demo_writes_one_page_that_needs_no_network(tmp_path):
    stages = []
    small = DemoSettings(lengths=(16, 32), dims=(8, 16), bursts=(4,), seeds=2, points=40)
    found = run_demo(tmp_path, small, lambda stage, done, of: stages.append((stage, done / of)))
    text = (tmp_path / "report.html").read_text()
    assert found["files"] == [str(tmp_path / "report.html")]
    assert found["runs"] == 10
    assert set(found["law"]["exponents"]) == {"length", "dim"}
    assert {s for s, _ in stages} >= {"integrating the flows", "fitting the law"}
    # Nothing is loaded from elsewhere, and the bundle and four charts are inside.
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", page)
    assert text.count("vega-lite/v") >= 4
    assert text.count('class="chart"') == 4
    assert "vegaEmbed" in text
    assert "nan" not in page.lower().replace("governance", "")


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


def test_law_plot_has_one_panel_a_term_and_one_for_the_law():
    plot = law_plot(fit_law(table()), table())
    assert len(plot.axes) == 3
    assert plot.axes[0].get_xlabel() == "dim"
    assert plot.axes[-1].get_legend() is not None  # censored runs are explained


def test_law_plot_says_what_it_shows():
    plot = law_plot(fit_law(table()), table())
    dim, length, last = plot.axes
    assert dim.get_title().startswith("exponent of dim")
    assert length.get_xticks().tolist() == [16, 32, 64]  # the values of the data
    assert last.get_xlabel() == "plateau by the law"
    assert plot.get_suptitle().startswith("plateau = ")


def test_fit_table_writes_law_and_plot(tmp_path):
    found = fit_table(table(), "plateau", ["dim", "length"], {}, tmp_path, "runs")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["runs.law.json", "runs.law.png", "runs.law.svg"]
    assert found["exponents"]["length"] == pytest.approx(1, abs=0.15)
    assert found["with_censored"]["exponents"]["length"] == pytest.approx(1, abs=0.1)
    assert found["censored"] > 0
