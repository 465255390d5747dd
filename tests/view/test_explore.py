"""Test what a user does on the page in a real browser: zoom, search, group, compare, name runs."""

import json
import time

import numpy as np
import pandas as pd
import pytest

from emergo.store.claims import Claims
from emergo.study.cells import cell_summary
from emergo.view._answers import fit

from .conftest import Served
from .made_up import finish, made_up_study, note_on

SOON = 20_000  # milliseconds; most conditions hold within some hundred
CURVES = "figure[data-figure=curves]"


@pytest.fixture(scope="module")
def shared(browser, served):
    """One page for all tests of this module; fail at the end if it reported an error."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, bypass_csp=True)
    opened = context.new_page()
    opened.set_default_timeout(SOON)
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    methods = set()
    opened.on("request", lambda request: methods.add(request.method))
    opened.goto(served.address)
    yield opened
    context.close()
    assert errors == []
    assert methods == {"GET"}  # names and tags never reach the server


@pytest.fixture
def page(shared, served):
    """The page in its first state: all runs, nothing chosen, no names."""
    shared.set_viewport_size({"width": 1200, "height": 800})
    shared.evaluate("localStorage.clear(); location.hash = ''; location.reload()")
    shared.wait_for_selector("html[data-painted]", state="attached", timeout=60_000)
    shared.wait_for_selector("text=18 curves")
    return shared


def row_of(page, identity: str):
    return page.locator(f".runs-table tr:has-text('{identity}')")


def pixels(page, figure: str) -> str:
    """Return everything that a figure shows on its canvases."""
    return page.evaluate(
        f"""[...document.querySelectorAll("figure[data-figure={figure}] canvas")]
        .map((canvas) => canvas.toDataURL()).join()"""
    )


def idle(page) -> None:
    page.wait_for_function("!document.querySelector('[aria-busy]')")


def drag(page, figure: str) -> None:
    box = page.locator(f"{figure} .u-over").bounding_box()
    x, y = box["x"] + box["width"] / 3, box["y"] + box["height"] / 3
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 150, y + 100, steps=4)
    page.mouse.up()
    page.wait_for_function("location.hash.includes('zoom')")


@pytest.mark.parametrize("undo", ["button", "escape", "double-click"])
def test_a_zoom_can_be_undone(page, undo):
    idle(page)
    whole = pixels(page, "curves")
    drag(page, CURVES)
    idle(page)
    assert pixels(page, "curves") != whole
    if undo == "button":
        page.click("button:has-text('Reset zoom')")
    elif undo == "escape":
        page.keyboard.press("Escape")
    else:
        page.dblclick(f"{CURVES} .u-over")
    page.wait_for_function("!location.hash.includes('zoom')")
    # The mouse still at work after a zoom would zoom again at the next click.
    page.mouse.move(5, 5)
    page.click(f"{CURVES} .u-over", position={"x": 300, "y": 10})
    page.mouse.move(5, 5)
    assert "zoom" not in page.url
    page.keyboard.press("Escape")
    idle(page)
    assert pixels(page, "curves") == whole


def test_runs_are_found_by_text_and_by_comparisons(page, served):
    table = pd.DataFrame(served.catalog.get("made up").columns)
    page.fill("[data-key=find]", "dim>=16 LENGTH=64 reached")
    page.keyboard.press("Enter")
    chosen = table[(table["dim"] >= 16) & (table["length"] == 64) & (table["state"] == "reached")]
    assert 0 < len(chosen) < 6
    page.wait_for_selector(f"text={len(chosen)} of 18 runs")
    page.wait_for_selector(f"text={len(chosen)} curves")
    page.fill("[data-key=find]", "dim<=16")
    page.keyboard.press("Enter")
    page.click("text=The law")  # is fitted to the runs that were found
    page.wait_for_selector("p:text-matches('plateau = .*; 12 runs')", timeout=SOON)
    page.click("text=Clear filter")
    page.click("[data-key='summary plateau']")
    most = int(table["plateau"].median())
    page.fill("[data-key='plateau high']", str(most))
    page.keyboard.press("Tab")
    few = table[table["plateau"] <= most]
    page.wait_for_selector(f"text={len(few)} of 18 runs")
    runs = served.catalog.get("made up")
    law = fit(runs, "plateau", ["dim", "length"], {"plateau": {"low": 0, "high": most}})
    assert law["law"]["runs"] == len(few)
    page.wait_for_selector(f"p:has-text('{law['law']['formula']}')", timeout=SOON)


def test_groups_are_summarised_like_cells(page, served, tmp_path):
    page.select_option("[data-key=mode]", "median")
    page.click("[data-key=groups] summary")
    page.click("[data-key='group length']")  # groups by dim alone
    page.wait_for_selector("text=3 groups;")
    with page.expect_download() as started:
        page.click("[aria-label='Download the groups as CSV']")
    started.value.save_as(tmp_path / "groups.csv")
    shown = pd.read_csv(tmp_path / "groups.csv")
    table = pd.DataFrame(served.catalog.get("made up").columns)
    expected = pd.DataFrame(cell_summary(table, ["dim"]))
    same = ["dim", "runs", "plateau", "plateau_min", "plateau_max", "censored", "failed", "bound"]
    pd.testing.assert_frame_equal(shown[same], expected[same], check_dtype=False)
    with page.expect_download() as started:
        page.click(f"{CURVES} button:has-text('CSV')")
    started.value.save_as(tmp_path / "curves.csv")
    medians = pd.read_csv(tmp_path / "curves.csv")
    assert sorted(medians["dim"].unique()) == [8, 16, 32]
    assert set(medians["runs"]) == {6}


def test_curves_can_be_smoothed(page, served, tmp_path):
    page.select_option("[data-key=y]", "train_loss")
    page.select_option("[data-key=smooth]", "15")
    made_up = served.catalog.get("made up")
    run = made_up.runs[5]
    x, y = made_up.curve(run, "train_loss")
    drawn = pd.DataFrame({"identity": []})
    begun = time.monotonic()
    # Curves arrive in parts.
    while run not in set(drawn["identity"]) and time.monotonic() < begun + SOON / 1000:
        idle(page)
        with page.expect_download() as started:
            page.click(f"{CURVES} button:has-text('CSV')")
        started.value.save_as(tmp_path / "curves.csv")
        drawn = pd.read_csv(tmp_path / "curves.csv", dtype={"identity": str})
    own = drawn[drawn["identity"] == run]
    np.testing.assert_array_equal(own["step"], x)
    for i in (0, 3, 20, len(x) - 1):
        half = min(7, i, len(x) - 1 - i)
        mean = y[i - half : i + half + 1].mean()
        assert own["train_loss"].iloc[i] == pytest.approx(mean, rel=1e-5)  # sent as fp32


def test_the_columns_of_the_table_can_be_chosen(page):
    page.click("[data-key=columns] summary")
    page.click("[data-key='column reason']")
    page.click("[data-key='column plateau_low']")
    heads = page.locator(".runs-table thead th").all_inner_texts()
    assert heads[-1] == "plateau, low (steps)"
    assert "reason" not in heads


def test_two_runs_are_highlighted_in_every_view_and_compared(page, served):
    runs = served.catalog.get("made up")
    states = zip(runs.runs, runs.columns["state"], strict=True)
    one, two = [run for run, state in states if state == "reached"][:2]
    idle(page)
    plain = {name: pixels(page, name) for name in ("curves", "parallel")}
    page.fill("[data-key=find]", one)
    page.keyboard.press("Enter")
    page.click(f"[data-key='run {one}']")
    page.click("button:has-text('Compare with another run')")
    page.click("text=Clear filter")
    page.click(f"[data-key='run {two}']")
    card = page.locator("[aria-label='The highlighted run']")
    card.locator(f"th:has-text('{one}')").wait_for()
    assert page.locator(".runs-table tr.chosen").count() == 2
    assert page.locator(".cells-table tr.chosen").count() >= 1
    idle(page)
    for name, before in plain.items():
        assert pixels(page, name) != before, name
    page.click("text=The law")
    page.wait_for_selector("figure[data-figure=law] h3:has-text('plateau')", timeout=SOON)
    idle(page)
    both = pixels(page, "law")
    page.keyboard.press("Escape")
    page.wait_for_function("!location.hash.includes('with')")
    idle(page)
    assert pixels(page, "law") != both
    page.evaluate(f"location.hash = 'view=run&run={two}&with={one}'; location.reload()")
    page.wait_for_selector(f"p:has-text('Compared with {one}')", timeout=SOON)
    differ = page.locator("table:has-text('Differences of config') tbody tr").all_inner_texts()
    fields = {line.split("\t")[0] for line in differ}
    assert "seed" in fields
    assert "plateau (steps)" in fields
    legend = page.locator("figure[data-figure=loss] .legend").inner_text()
    assert f"{one} (dashed)" in legend


def test_names_and_tags_stay_in_this_browser(page, served, tmp_path):
    identity = served.catalog.get("made up").runs[2]
    markup = "<b>odd</b> run"
    page.click(f"[data-key='run {identity}']")
    page.fill("[data-key='label name']", markup)
    page.keyboard.press("Tab")
    page.fill("[data-key='label tags']", "late, kept")
    page.keyboard.press("Tab")
    page.wait_for_selector(".runs-table th:has-text('tags')")
    page.reload()
    assert markup in row_of(page, identity).inner_text()
    assert page.locator("b").count() == 0
    page.fill("[data-key=find]", "kept")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1 of 18 runs")
    page.select_option("[data-key=by]", "tags")
    page.click("text=Clear filter")
    page.wait_for_selector(f"{CURVES} .legend li:has-text('late, kept')")
    with page.expect_download() as started:
        page.click("button:has-text('Save names')")
    started.value.save_as(tmp_path / "labels.json")
    saved = json.loads((tmp_path / "labels.json").read_text())
    assert saved == {identity: {"name": markup, "tags": "late, kept"}}
    page.evaluate("localStorage.clear()")
    page.reload()
    row_of(page, identity).wait_for()
    assert markup not in row_of(page, identity).inner_text()
    page.set_input_files("input[type=file]", tmp_path / "labels.json")
    row_of(page, markup).wait_for()
    (tmp_path / "labels.json").write_text("no names")
    page.set_input_files("input[type=file]", tmp_path / "labels.json")
    page.wait_for_selector("text=does not hold names and tags")


def test_the_scatter_matrix_highlights_the_run_of_a_point(page):
    page.click(".matrix summary")
    figure = page.locator("figure[data-figure=matrix]")
    figure.locator("canvas").wait_for()
    box = figure.locator("canvas").bounding_box()
    # The lowest row has plateau against dim on the left: the runs of the largest dim on its right.
    page.mouse.click(
        box["x"] + 58 + (box["width"] - 58) / 2 - 15, box["y"] + box["height"] / 2 + 10
    )
    page.wait_for_selector(".runs-table tr.chosen")
    assert page.locator(".runs-table tr.chosen td").nth(1).inner_text() == "32"
    page.click("[data-key='matrix steps']")
    page.wait_for_function("location.hash.includes('matrix')")
    assert "steps" in (figure.locator("[role=img]").get_attribute("aria-label") or "")


def test_states_have_marks(page, served):
    page.select_option("[data-key=by]", "state")
    legend = page.locator(f"{CURVES} .legend li")
    marks = {text.split()[1]: text.split()[0] for text in legend.all_inner_texts()}
    expected = {"reached": "●", "censored": "△", "failed": "×"}
    states = set(served.catalog.get("made up").columns["state"])
    assert {"reached", "failed"} <= states
    assert marks == {state: expected[state] for state in states}


def test_a_narrow_window_shows_the_plot_first(page):
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("runs", "law", "run"):
        page.evaluate(f"location.hash = 'view={view}'; location.reload()")
        page.wait_for_selector("html[data-painted]", state="attached", timeout=SOON)
        plot = page.locator("main figure").first
        plot.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".controls").first.is_hidden()
        shown = "[...document.querySelectorAll('h1, h2, h3')].filter((each) => each.offsetParent)"
        assert page.evaluate(f"{shown}.slice(0, 2).map((each) => each.tagName)") == ["H1", "H2"]
        top = page.evaluate("document.querySelector('main .split').getBoundingClientRect().top")
        assert page.locator(".main").first.bounding_box()["y"] - top < 80
    page.click(".panel > summary")
    page.wait_for_selector("[data-key=run]", state="visible")


def test_axe_finds_nothing(page):
    source = pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT
    for view in ("runs", "law", "run", "live"):
        page.evaluate(f"location.hash = 'view={view}'; location.reload()")
        page.wait_for_selector("html[data-painted]", state="attached", timeout=SOON)
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        idle(page)
        page.evaluate(source)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
        assert len(found["passes"]) > 30  # the rules were applied


def test_runs_in_training_have_curves(seen, tmp_path):
    study = made_up_study(dims=[4], lengths=[8])
    plan = finish(study, tmp_path, runs=[]).read()[0]
    note = note_on(study.runs[1])
    running = [[note["run"], 2000, 0.5], [study.runs[2].identity, 900, 0.7]]
    claims = Claims(tmp_path / "claims", beat=0.05)
    server = Served(tmp_path)
    with claims.take(plan.units[0].id) or pytest.fail("taken") as claim:
        claim.tell({"running": running, "notes": [note], "done": 0, "total": 3})
        page = seen.open(server.address)
        page.wait_for_selector("text=2 of 2 runs", timeout=SOON)  # before any run has finished
        page.wait_for_selector("text=2 curves")
        with page.expect_download() as started:
            page.click(f"{CURVES} button:has-text('CSV')")
        started.value.save_as(tmp_path / "curves.csv")
        drawn = pd.read_csv(tmp_path / "curves.csv", dtype={"identity": str})
        drawn = drawn.groupby("identity")
        own = drawn.get_group(note["run"])
        steps, losses = note["data"]["curve"]
        np.testing.assert_allclose(own["step"], steps)
        np.testing.assert_allclose(own["loss"], losses)
        other = drawn.get_group(study.runs[2].identity)
        assert (other["step"].iloc[-1], other["loss"].iloc[-1]) == (900, 0.7)
        finish(study, tmp_path, runs=[1], fail=None)
        page.wait_for_selector(".runs-table tr:has-text('reached')", timeout=SOON)
        row = page.locator(".runs-table tr", has_text=study.runs[2].identity)
        assert "training" in row.inner_text()
    seen.page.close()
    server.end()
