"""The page in a real browser: every view, what is live, names that are markup, downloads, and the file without a server."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from emergo.studies import Failures
from emergo.studies._claims import Claims
from emergo.view import Catalog, export_page
from emergo.view._thin import thin

from .conftest import Served
from .made_up import finish, made_up_study, told_of

SOON = 20_000  # milliseconds that a condition is waited for; most hold within some hundred


def test_all_runs_are_curves_coordinates_and_a_table(seen, served):
    page = seen.open(served.address)
    assert "token" not in page.url
    page.wait_for_selector("text=18 of 18 runs")
    assert page.locator("figure[data-figure=curves] canvas").count() == 3
    assert page.locator("figure[data-figure=curves] .legend li").all_inner_texts() == ["8", "16", "32"]
    assert page.locator(".runs-table tbody tr").count() == 18
    assert [heading.inner_text() for heading in page.locator("h1, h2").all()] == [
        "emergo\nstudy: made up (18 runs)",
        "All runs",
    ]
    page.select_option("[data-key=by]", "seed")
    page.select_option("[data-key=mode]", "median")
    page.wait_for_selector("figcaption:has-text('median of each cell')")
    page.click("summary:has-text('length')")
    page.click("[data-key='length=64']")
    page.wait_for_selector("text=9 of 18 runs")
    page.click(".runs-table tbody tr:nth-child(3) button")
    page.wait_for_selector("h3:has-text('The highlighted run')")
    address = page.url
    page.reload()  # what is on the screen has an address
    page.wait_for_selector("text=9 of 18 runs")
    page.wait_for_selector("figcaption:has-text('median of each cell')")
    assert page.url == address
    assert page.locator("tr.chosen").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_law_with_axes_chosen_by_hand(seen, served, scheme):
    seen.page.emulate_media(color_scheme=scheme)
    page = seen.open(f"{served.address}#view=law")
    page.wait_for_selector("figure[data-figure=law] h3:has-text('plateau = ')", timeout=SOON)
    assert re.fullmatch(
        r"plateau = [\d.]+ dim\^1\.\d\d length\^0\.\d\d", page.locator("figure[data-figure=law] h3").inner_text()
    )
    assert page.locator("[aria-label='Numbers of the law'] tbody tr").count() == 3
    assert all(page.locator(f"figure[data-figure={name}] canvas").count() == 3 for name in ("measured", "residuals"))
    page.click("[data-key='term length']")
    page.wait_for_selector("figure[data-figure=law] h3:text-matches('^plateau = [0-9.]+ dim.[0-9.]+$')", timeout=SOON)


def test_one_run_with_its_heads_and_a_slider(seen, served):
    seen.page.set_viewport_size({"width": 420, "height": 800})
    page = seen.open(f"{served.address}#view=run")
    page.wait_for_selector("[aria-label=Stages] td", timeout=SOON)
    assert page.locator("h3:has-text('at step')").inner_text().startswith("attention on the relevant tokens: at step")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("h3:has-text('at step 0')")
    assert "at=0" in page.url
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = page.locator("h2:text-matches('^Run ')").inner_text()
    page.click("button:has-text('Next')")
    page.wait_for_selector(f"h2:text-matches('^Run (?!{first[4:]})')")
    page.keyboard.press("4")
    page.wait_for_selector("text=Every run has ended")


def test_what_would_have_been_said_of_a_run_is_beside_what_came(seen, served, tmp_path):
    run = next(run for run, state in states(served) if state == "reached")
    page = seen.open(f"{served.address}#view=run&run={run}")
    told = page.locator("section[aria-label=Forecast]")
    told.locator("text=Emerged at step").wait_for(timeout=SOON)
    first = re.search(r"first forecast would have come at step ([\d,]+): (~[\d,]+)", told.inner_text())
    assert first
    page.evaluate(f"location.hash += '&at={first[1].replace(',', '')}'")  # as one who was sent the address
    page.reload()
    told.locator(f"text=Emerges at about step {first[2][1:]}").wait_for(timeout=SOON)
    assert re.search(r"50%\n[\d,]+ to [\d,]+\n80%\n[\d,]+ to [\d,]+", told.inner_text())
    assert re.search(r"It came at step [\d,]+, (in the [58]0%|before the 80%|after the 80%) interval", told.inner_text())
    assert "forecast: ~" in (page.locator("input[type=range]").get_attribute("aria-valuetext") or "")
    assert "It came at step" in (page.locator("[data-key='plot forecasts']").get_attribute("aria-label") or "")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    told.locator(".large:has-text('No signal')").wait_for(timeout=SOON)
    with page.expect_download() as download:
        page.click("figure[data-figure=forecasts] button:has-text('CSV')")
    download.value.save_as(tmp_path / "csv")
    assert (tmp_path / "csv").read_text().startswith("asked_at,state,step,low_50,high_50,low_80,high_80\n0,no signal,,,,,\n")


def states(served: Served) -> list[tuple[str, str]]:
    table = served.catalog.sets()["made up"].columns
    return list(zip(table["identity"], table["state"], strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_in_training_has_a_page_with_its_forecast(seen, tmp_path, scheme):
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.set_viewport_size({"width": 420, "height": 800})
    study = made_up_study(dims=[4], lengths=[8])
    plan = finish(study, tmp_path, runs=[]).read()[0]  # none has ended
    told = told_of(study.runs[1])
    server = Served(tmp_path)
    try:
        with Claims(tmp_path / "claims", beat=0.05).take(plan.units[0].id) or pytest.fail("not free") as claim:
            claim.tell({"running": [[told["run"], 2000, 0.5]], "forecasts": [told], "done": 0, "total": 3})
            page = seen.open(f"{server.address}#view=live")
            page.click(f"[data-key='training {told['run']}']", timeout=SOON)
            page.wait_for_selector("text=Emerges at about step", timeout=SOON)
            assert page.locator("figure[data-figure=loss] canvas").count() == 3
            assert told["words"] in (page.locator("[data-key='plot loss']").get_attribute("aria-label") or "")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.reload()  # it has an address
            page.wait_for_selector("text=Emerges at about step", timeout=SOON)
            finish(study, tmp_path, runs=[1], fail=None)  # its page becomes that of a finished run by itself
            page.wait_for_selector("h3:has-text('Step of training')", timeout=SOON)
    finally:
        seen.page.close()  # else it may ask a server that has gone
        server.end()


def test_downloads(seen, served, tmp_path):
    page = seen.open(served.address)
    page.wait_for_selector("text=18 curves")
    content = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.expect_download() as download:
            page.click(f"figure[data-figure=curves] button:has-text('{kind}')")
        download.value.save_as(tmp_path / kind)
        content[kind] = (tmp_path / kind).read_bytes()
    drawing = ElementTree.fromstring(content["SVG"])
    words = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"loss of every run", "step", "loss", "dim", "32"} <= set(words)  # title, axes and legend
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) > 18
    assert content["PNG"].startswith(b"\x89PNG")
    assert len(content["PNG"]) > 20_000
    lines = content["CSV"].decode().splitlines()
    assert lines[0] == "identity,dim,length,seed,step,loss"
    assert len(lines) > 18 * 20


def test_medians_and_bands_are_the_quantiles_over_seeds(seen, served, tmp_path):
    page = seen.open(f"{served.address}#mode=median&lx=0")
    page.wait_for_selector("text=18 runs; the band")
    with page.expect_download() as download:
        page.click("figure[data-figure=curves] button:has-text('CSV')")
    download.value.save_as(tmp_path / "csv")
    drawn = pd.read_csv(tmp_path / "csv")
    made_up = served.catalog.sets()["made up"]
    table = pd.DataFrame(made_up.columns)
    whole = {run: made_up.curve(run, "loss") for run in table["identity"]}
    curves = {run: thin(steps, values, points=400) for run, (steps, values) in whole.items()}
    for (dim, length), cell in drawn.groupby(["dim", "length"]):
        runs = table[(table["dim"] == dim) & (table["length"] == length)]["identity"]
        values = np.stack([np.interp(cell["step"], *curves[run]) for run in runs])
        assert (cell["runs"] == len(values)).all()
        for name, share in {"median": 0.5, "quantile_25": 0.25, "quantile_75": 0.75}.items():
            np.testing.assert_allclose(cell[name], np.quantile(values, share, axis=0), rtol=1e-5)  # curves are sent as fp32


def test_a_value_without_a_neighbour_is_drawn(seen, served):
    """A run that ended at its first evaluation has but one on a logarithmic axis."""
    page = seen.open(served.address)
    page.wait_for_selector("text=18 curves")
    drawn = page.evaluate(
        """async () => {
          const { line } = await import("/static/plot.js");
          const calls = [];
          const note = (name) => (...where) => calls.push([name, ...where]);
          const none = () => {};
          const context = { beginPath: none, setLineDash: none, stroke: none, moveTo: note("move"), lineTo: note("line") };
          const view = { x: (value) => value, y: (value) => value };
          line(context, { x: [0, 25], y: [1, 2] }, view, { x: { log: true } });
          line(context, { x: [10, 20, 30], y: [1, 2, 3] }, view);
          return calls;
        }"""
    )
    assert drawn == [["move", 22, 2], ["line", 28, 2], ["move", 10, 1], ["line", 20, 2], ["line", 30, 3]]


def test_a_logarithmic_axis_has_numbers_all_along(seen, served):
    page = seen.open(served.address)
    ticks = """async (wanted) => {
      const { logTicks } = await import("/static/ticks.js");
      return wanted.map((each) => logTicks(...each).values.filter(Boolean).join(" "));
    }"""
    wanted = {
        "0.8 0.9 1 1.1 1.2": [[0.78, 1.28], 240, 22],
        "2 3 4 5 6": [[1.9, 6.3], 396, 44],
        "100 120 140 160 180 200 220": [[88, 236], 320, 22],
        "150 200 300 400 500": [[130, 520], 240, 22],
        "2 5 10": [[1.01, 10], 400, 44],
        "1 10 100 1000": [[1, 1000], 400, 44],
        "10⁻⁴ 1.5·10⁻⁴ 2·10⁻⁴ 2.5·10⁻⁴ 3·10⁻⁴": [[1e-4, 3e-4], 240, 22],
        "2 4 6": [[1.9, 6.3], 396, 44, [2, 4, 6]],
        "2 512": [[1.9, 600], 100, 44, [2, 4, 6, 100, 128, 512]],  # the ends, where not all have room
    }
    assert page.evaluate(ticks, list(wanted.values())) == list(wanted)


def test_coordinates_have_numbers_at_their_ends(seen, served, tmp_path):
    page = seen.open(served.address)
    page.wait_for_selector("text=One line per run")
    with page.expect_download() as download:
        page.click("figure[data-figure=parallel] button:has-text('SVG')")
    download.value.save_as(tmp_path / "svg")
    words = [text.text for text in ElementTree.parse(tmp_path / "svg").iter("{http://www.w3.org/2000/svg}text")]
    plateaus = [value for value in served.catalog.sets()["made up"].columns["plateau"] if np.isfinite(value)]
    assert {str(round(min(plateaus))), str(round(max(plateaus))), "8", "32"} <= set(words)


def test_each_end_of_a_plateau_says_what_it_is(seen, served):
    run = next(run for run, state in states(served) if state == "reached")
    page = seen.open(f"{served.address}#view=run&run={run}")
    page.wait_for_selector("text=/evaluations; the plateau ends at step [0-9]+, where the loss passes 0.1/", timeout=SOON)
    stages = page.locator("[aria-label=Stages]").first
    stages.locator("text=/A drop begins where .* by the run's threshold the plateau ends at step/").wait_for(timeout=SOON)
    assert "begins (step)" in stages.inner_text()
    assert page.locator("text=Log steps leave out step 0, where the loss is 1.").is_visible()
    page.click("[data-key=lx]")
    page.locator("text=Log steps leave out").wait_for(state="hidden")
    family = page.locator("[data-key=family]")
    assert family.evaluate(
        """(select) => {
          const pen = document.createElement("canvas").getContext("2d");
          pen.font = getComputedStyle(select).font;
          return pen.measureText(select.selectedOptions[0].text).width + 36 <= select.clientWidth;  // padding and the arrow
        }"""
    ), "the words fit"


def test_a_change_of_the_look_asks_for_nothing_and_keeps_the_plot(seen, served):
    page = seen.open(served.address)
    page.wait_for_selector("text=18 curves")
    page.wait_for_selector("figure[data-figure=curves]:not(:has([aria-busy]))")
    page.evaluate("document.querySelector('figure[data-figure=curves] canvas').dataset.first = ''")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.select_option("[data-key=by]", "seed")
    page.wait_for_selector("text=coloured by seed")  # below the curves, and after them
    assert page.locator("figure[data-figure=curves] canvas[data-first]").count() == 1
    page.select_option("[data-key=mode]", "median")
    page.wait_for_selector("text=18 runs; the band")
    assert not [url for url in asked if "/api/curves" in url]


def test_a_study_called_script_is_text_and_new_points_appear(seen, tmp_path):
    name = "<script>document.title='run'</script><img src=x onerror=alert(1)>"
    study = made_up_study(dims=[4], lengths=[8], name=name)
    plan = finish(study, tmp_path, runs=[0], fail=None).read()[0]
    Failures(tmp_path / "failures").note(plan.runs[1].identity, 0, "<b>no memory</b>", "memory")
    server = Served(tmp_path)
    try:
        page = seen.open(f"{server.address}#view=live")
        page.wait_for_selector("td:has-text('<b>no memory</b>')")
        assert page.locator(f"h3:text-is({json.dumps(name)})").count() == 1
        page.click("text=All runs")
        page.wait_for_selector("text=1 of 1 runs")
        with Claims(tmp_path / "claims", beat=0.05).take(plan.units[0].id) or pytest.fail("not free") as claim:
            claim.tell({"running": [[plan.runs[1].identity, 40, 0.5]], "rate": 7.0, "done": 1, "total": 3, "seconds_left": 9.0})
            finish(study, tmp_path, runs=[1], fail=None)
            page.wait_for_selector("text=2 of 2 runs", timeout=SOON)  # by itself
            page.keyboard.press("4")
            page.wait_for_selector("td:has-text('process')", timeout=SOON)
            assert "7" in page.locator("section.card table").first.inner_text()
        assert page.title().startswith("emergo")
        assert page.locator("img").count() == 0
    finally:
        seen.page.close()  # else it may ask a server that has gone
        server.end()


def test_the_exported_file_works_without_a_server(seen, folder, tmp_path):
    export_page(Catalog(folder), tmp_path / "page.html")
    page = seen.open(f"file://{tmp_path}/page.html")
    page.wait_for_selector("text=18 of 18 runs")
    page.keyboard.press("2")
    page.wait_for_selector("figure[data-figure=law] h3:has-text('plateau = ')")
    page.click("[data-key='term length']")
    page.wait_for_selector("figure[data-figure=law] h3:text-matches('^plateau = [0-9.]+ dim.[0-9.]+$')")
    page.keyboard.press("3")
    page.wait_for_selector("h3:has-text('at step')")
    page.wait_for_selector("section[aria-label=Forecast] figure[data-figure=forecasts]")
    assert seen.asked <= {""}


def test_many_runs_are_painted_soon_and_answer_at_once(seen, tmp_path, monkeypatch):
    """A small case of benchmarks/view.py, with bounds that a loaded machine keeps."""
    monkeypatch.setattr("emergo.studies._store.flush", lambda path: None)  # of 120 runs: what is tested survives no power cut
    finish(made_up_study(dims=range(4, 8), lengths=[8, 16, 32], seeds=10), tmp_path, evaluations=60, fail=None)
    server = Served(tmp_path)
    try:
        page = seen.open(server.address)
        assert page.evaluate("performance.getEntriesByName('emergo:first-paint')[0].startTime") < 10_000
        page.wait_for_selector("text=120 curves", timeout=SOON)
        page.click("summary:has-text('length')")
        page.click("[data-key='length=32']")
        page.wait_for_selector("text=80 of 120 runs")
        page.wait_for_selector("text=80 curves", timeout=SOON)
    finally:
        seen.page.close()  # else it may ask a server that has gone
        server.end()
