"""The page of the demo."""

import json
import re

import pytest
import vl_convert

from emergo.demo import DemoSettings, run_demo
from emergo.study import Watcher


@pytest.mark.slow
def test_the_page_is_self_contained(tmp_path):
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
    # The page makes no requests. It contains the bundle and four charts, and no text in it ends a
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
        "the theory covers the runs"
    )
    for chart in shown.values():
        svg = vl_convert.vegalite_to_svg(json.dumps(chart | {"width": 600, "datasets": tables}))
        assert "mark-line" in svg
        assert "NaN" not in svg
