"""Test the page in a real browser: every view, live updates, downloads, and the exported file."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from emergo.store import Failures
from emergo.store.claims import Claims
from emergo.view import Catalog, export_page
from emergo.view._runset import thin

from .conftest import Served
from .made_up import finish, made_up_study, note_on

SOON = 20_000  # milliseconds; most conditions hold within some hundred
LAW = "figure[data-figure=law] h3"
SVG_TEXT = "{http://www.w3.org/2000/svg}text"


def download(page, figure, kind, path):
    """Save the file that a button of a figure offers, and return its path."""
    with page.expect_download() as started:
        page.click(f"figure[data-figure={figure}] button:has-text('{kind}')")
    started.value.save_as(path)
    return path


def reached_run(served: Served) -> str:
    columns = served.catalog.get("made up").columns
    return columns["identity"][columns["state"].index("reached")]


@pytest.fixture
def serve(seen):
    """Start servers that end after the page, which would otherwise report a lost server."""
    servers = []

    def start(path) -> Served:
        servers.append(Served(path))
        return servers[-1]

    yield start
    seen.page.close()
    for server in servers:
        server.end()


def test_all_runs_are_curves_coordinates_and_tables(seen, served):
    page = seen.open(served.address)
    assert "token" not in page.url
    page.wait_for_selector("text=18 of 18 runs")
    assert page.locator("figure[data-figure=curves] canvas").count() == 3
    legend = page.locator("figure[data-figure=curves] .legend li").all_inner_texts()
    assert legend == ["8", "16", "32"]
    assert page.locator(".runs-table tbody tr").count() == 18
    assert page.locator(".cells-table tbody tr").count() == 6
    assert page.locator("h1").inner_text() == "emergo\nstudy: made up (18 runs)"
    page.select_option("[data-key=by]", "seed")
    page.select_option("[data-key=mode]", "median")
    page.wait_for_selector("figcaption:has-text('median of each group')")
    page.click("[data-key='summary length']")
    page.click("[data-key='length=64']")
    page.wait_for_selector("text=9 of 18 runs")
    page.wait_for_selector("text=3 groups;", timeout=SOON)
    page.click(".runs-table tbody tr:nth-child(3) button")
    page.wait_for_selector("h3:has-text('The highlighted run')")
    address = page.url
    page.reload()  # the address holds the state of the page
    page.wait_for_selector("text=9 of 18 runs")
    page.wait_for_selector("figcaption:has-text('median of each group')")
    assert page.url == address
    assert page.locator(".runs-table tr.chosen").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_terms_of_a_law_can_be_chosen(seen, served, scheme):
    seen.page.emulate_media(color_scheme=scheme)
    page = seen.open(f"{served.address}#view=law")
    page.wait_for_selector(f"{LAW}:has-text('plateau = ')", timeout=SOON)
    formula = page.locator(LAW).inner_text()
    assert re.fullmatch(r"plateau = [\d.]+ dim\^1\.\d\d length\^0\.\d\d", formula)
    assert page.locator("[aria-label='Numbers of the law'] tbody tr").count() == 3
    for name in ("measured", "residuals"):
        assert page.locator(f"figure[data-figure={name}] canvas").count() == 3
    page.click("[data-key='term length']")
    page.wait_for_selector(f"{LAW}:text-matches('^plateau = [0-9.]+ dim.[0-9.]+$')", timeout=SOON)


def test_an_old_figure_shows_its_law_and_why_it_is_not_fitted(seen, serve, tmp_path):
    table = pd.DataFrame({"identity": ["a", "b"], "dim": [4, 8], "plateau": [10.0, 20.0]})
    table.to_parquet(tmp_path / "fig.left.parquet")
    law = {"name": "the law", "formula": "plateau = 2.5 dim^1.00", "exponents": {"dim": 1.0}}
    report = {"figure": "fig", "title": "A figure", "laws": [law], "checks": []}
    (tmp_path / "fig.json").write_text(json.dumps(report))
    (tmp_path / "fig.png").write_bytes(b"")
    page = seen.open(f"{serve(tmp_path).address}#view=law&set=fig")
    page.wait_for_selector("text=does not list the terms of this law", timeout=SOON)
    page.wait_for_selector("td:has-text('plateau = 2.5 dim^1.00')")
    assert page.locator("figure[data-figure=law]").is_hidden()


def test_one_run_with_its_heads_and_a_slider(seen, served):
    seen.page.set_viewport_size({"width": 420, "height": 800})
    page = seen.open(f"{served.address}#view=run")
    page.wait_for_selector("[aria-label=Stages] td", timeout=SOON)
    heading = page.locator("h3:has-text('at step')").inner_text()
    assert heading.startswith("attention on the relevant tokens: at step")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("h3:has-text('at step 0')")
    assert "at=0" in page.url
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = page.locator("h2:text-matches('^Run ')").inner_text()
    page.click(".panel > summary")  # opens the controls, which a narrow window folds away
    page.click("button:has-text('Next')")
    page.wait_for_selector(f"h2:text-matches('^Run (?!{first[4:]})')")
    page.keyboard.press("4")
    page.wait_for_selector("text=Every run has finished")


def test_forecasts_of_a_finished_run_are_compared_with_the_outcome(seen, served, tmp_path):
    page = seen.open(f"{served.address}#view=run&run={reached_run(served)}")
    forecast = page.locator("section[aria-label=Forecast]")
    forecast.locator("text=Emerged at step").wait_for(timeout=SOON)
    pattern = r"first forecast is from step ([\d,]+): ~([\d,]+)"
    first = re.search(pattern, forecast.inner_text())
    assert first
    page.evaluate(f"location.hash += '&at={first[1].replace(',', '')}'")
    page.reload()
    forecast.locator(f"text=Emerges at about step {first[2]}").wait_for(timeout=SOON)
    text = forecast.inner_text()
    assert re.search(r"50%\n[\d,]+ to [\d,]+\n80%\n[\d,]+ to [\d,]+", text)
    where = r"(in the [58]0%|before the 80%|after the 80%) interval"
    assert re.search(rf"The run emerged at step [\d,]+, {where}", text)
    slider = page.locator("input[type=range]")
    assert "forecast: ~" in (slider.get_attribute("aria-valuetext") or "")
    plot = page.locator("[data-key='plot forecasts']")
    assert "The run emerged at step" in (plot.get_attribute("aria-label") or "")
    slider.focus()
    page.keyboard.press("Home")
    forecast.locator(".large:has-text('No signal')").wait_for(timeout=SOON)
    lines = download(page, "forecasts", "CSV", tmp_path / "csv").read_text().splitlines()
    assert lines[0] == "asked_at,state,step,low_50,high_50,low_80,high_80"
    assert lines[1] == "0,no signal,,,,,"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_in_training_has_a_page_with_its_forecast(seen, serve, tmp_path, scheme):
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.set_viewport_size({"width": 420, "height": 800})
    study = made_up_study(dims=[4], lengths=[8])
    plan = finish(study, tmp_path, runs=[]).read()[0]
    note = note_on(study.runs[1])
    running = [[note["run"], 2000, 0.5]]
    claims = Claims(tmp_path / "claims", beat=0.05)
    server = serve(tmp_path)
    with claims.take(plan.units[0].id) or pytest.fail("taken") as claim:
        claim.tell({"running": running, "notes": [note], "done": 0, "total": 3})
        page = seen.open(f"{server.address}#view=live")
        page.click(f"[data-key='training {note['run']}']", timeout=SOON)
        page.wait_for_selector("text=Emerges at about step", timeout=SOON)
        plot = page.locator("[data-key='plot loss']")
        assert note["text"] in (plot.get_attribute("aria-label") or "")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.reload()
        page.wait_for_selector("text=Emerges at about step", timeout=SOON)
        finish(study, tmp_path, runs=[1], fail=None)
        page.wait_for_selector("h3:has-text('Step of training')", timeout=SOON)


def test_downloads(seen, served, tmp_path):
    page = seen.open(served.address)
    page.wait_for_selector("text=18 curves")
    drawing = ElementTree.parse(download(page, "curves", "SVG", tmp_path / "svg"))
    texts = {text.text for text in drawing.iter(SVG_TEXT)}
    assert {"loss of every run", "step", "loss", "dim", "32"} <= texts
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) > 18
    picture = download(page, "curves", "PNG", tmp_path / "png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    lines = download(page, "curves", "CSV", tmp_path / "csv").read_text().splitlines()
    assert lines[0] == "identity,dim,length,seed,step,loss"
    assert len(lines) > 18 * 20
    drawing = ElementTree.parse(download(page, "parallel", "SVG", tmp_path / "svg"))
    plateaus = [p for p in served.catalog.get("made up").columns["plateau"] if np.isfinite(p)]
    ends = {str(round(min(plateaus))), str(round(max(plateaus))), "8", "32"}
    assert ends <= {text.text for text in drawing.iter(SVG_TEXT)}


def test_medians_and_bands_are_the_quantiles_over_seeds(seen, served, tmp_path):
    page = seen.open(f"{served.address}#mode=median&lx=0")
    page.wait_for_selector("text=18 runs; the band")
    drawn = pd.read_csv(download(page, "curves", "CSV", tmp_path / "csv"))
    made_up = served.catalog.get("made up")
    table = pd.DataFrame(made_up.columns)
    curves = {run: thin(*made_up.curve(run, "loss"), points=400) for run in made_up.runs}
    for (dim, length), cell in drawn.groupby(["dim", "length"]):
        runs = table[(table["dim"] == dim) & (table["length"] == length)]["identity"]
        values = np.stack([np.interp(cell["step"], *curves[run]) for run in runs])
        assert (cell["runs"] == len(values)).all()
        for name, share in {"median": 0.5, "quantile_25": 0.25, "quantile_75": 0.75}.items():
            expected = np.quantile(values, share, axis=0)
            np.testing.assert_allclose(cell[name], expected, rtol=1e-5)  # sent as fp32


def test_logarithmic_axes_have_labels_everywhere(seen, served):
    page = seen.open(served.address)
    ticks = """async (axes) => {
      const { logTicks } = await import(new URL("static/ticks.js", document.baseURI).href);
      return axes.map((axis) => logTicks(...axis).values.filter(Boolean).join(" "));
    }"""
    axes = {
        "0.8 0.9 1 1.1 1.2": [[0.78, 1.28], 240, 22],
        "2 3 4 5 6": [[1.9, 6.3], 396, 44],
        "100 120 140 160 180 200 220": [[88, 236], 320, 22],
        "150 200 300 400 500": [[130, 520], 240, 22],
        "2 5 10": [[1.01, 10], 400, 44],
        "1 10 100 1000": [[1, 1000], 400, 44],
        "10⁻⁴ 1.5·10⁻⁴ 2·10⁻⁴ 2.5·10⁻⁴ 3·10⁻⁴": [[1e-4, 3e-4], 240, 22],
        "2 4 6": [[1.9, 6.3], 396, 44, [2, 4, 6]],
        "2 512": [[1.9, 600], 100, 44, [2, 4, 6, 100, 128, 512]],  # only the ends fit
    }
    assert page.evaluate(ticks, list(axes.values())) == list(axes)


def test_both_definitions_of_the_end_of_a_plateau_are_explained(seen, served):
    page = seen.open(f"{served.address}#view=run&run={reached_run(served)}")
    note = "/evaluations; the plateau ends at step [0-9]+, where the loss crosses 0.1/"
    page.wait_for_selector(f"text={note}", timeout=SOON)
    stages = page.locator("[aria-label=Stages]").first
    stages.locator(
        "text=/a drop begins where .* threshold of the run, the plateau ends/"
    ).wait_for()
    assert "begins (step)" in stages.inner_text()
    left_out = page.locator("text=The log scale leaves out step 0, where the loss is 1.")
    assert left_out.is_visible()
    page.click("[data-key=lx]")
    left_out.wait_for(state="hidden")


def test_markup_in_names_is_text_and_new_runs_appear(seen, serve, tmp_path):
    name = "<script>document.title='run'</script><img src=x onerror=alert(1)>"
    study = made_up_study(dims=[4], lengths=[8], name=name)
    plan = finish(study, tmp_path, runs=[0], fail=None).read()[0]
    identity = plan.runs[1].identity
    Failures(tmp_path / "failures").note(identity, 0, "<b>no memory</b>", "memory")
    page = seen.open(f"{serve(tmp_path).address}#view=live")
    page.wait_for_selector("td:has-text('<b>no memory</b>')")
    assert page.locator(f"h3:text-is({json.dumps(name)})").count() == 1
    page.click("text=All runs")
    page.wait_for_selector("text=1 of 1 runs")
    claims = Claims(tmp_path / "claims", beat=0.05)
    with claims.take(plan.units[0].id) or pytest.fail("taken") as claim:
        claim.tell({"running": [[identity, 40, 0.5]], "rate": 7.0, "done": 1, "total": 3})
        finish(study, tmp_path, runs=[1], fail=None)
        page.wait_for_selector("text=2 of 2 runs", timeout=SOON)
        page.keyboard.press("4")
        page.wait_for_selector("td:has-text('process')", timeout=SOON)
        assert "7" in page.locator("section.card table").first.inner_text()
    assert page.title().startswith("emergo")
    assert page.locator("img").count() == 0


def test_the_exported_file_works_without_a_server(seen, folder, tmp_path):
    export_page(Catalog(folder), tmp_path / "page.html")
    page = seen.open(f"file://{tmp_path}/page.html")
    page.wait_for_selector("text=18 of 18 runs")
    page.locator(".cells-table tbody tr").first.wait_for()
    page.keyboard.press("2")
    page.wait_for_selector(f"{LAW}:has-text('plateau = ')")
    page.click("[data-key='term length']")
    page.wait_for_selector(f"{LAW}:text-matches('^plateau = [0-9.]+ dim.[0-9.]+$')")
    page.keyboard.press("3")
    page.wait_for_selector("h3:has-text('at step')")
    page.wait_for_selector("section[aria-label=Forecast] figure[data-figure=forecasts]")
    assert seen.asked <= {""}
