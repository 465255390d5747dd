"""Test the page of logs in a real browser: live, compared, and as one file."""

import pytest

from emergo.view import Catalog, Learned, export_page

from .conftest import Served
from .logs import add_rows, write_log

SOON = 30_000  # milliseconds; most conditions hold within some hundred


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


def test_a_log_is_live(seen, serve, tmp_path):
    seen.page.emulate_media(color_scheme="dark")
    log = tmp_path / "log.csv"
    write_log(log, last=900)
    page = seen.open(serve(log).address)
    page.wait_for_selector("text=No head has put half of its weight on the keys of a class")
    assert page.locator("button[aria-current=page]").inner_text() == "One run"
    page.wait_for_selector("h3:has-text('induction score: at step 900')")
    for name in ("loss", "attention-over-training", "agreement_query_key", "gradient_query_key"):
        assert page.locator(f"figure[data-figure={name}] canvas").count() >= 1
    page.select_option("[data-key=family]", "entropy")
    page.wait_for_selector("h3:has-text('entropy of attention (nats): over training')")
    forecast = page.locator("section[aria-label=Forecast]")
    # Without a threshold, a drop can be announced, but no step.
    forecast.locator(".large:has-text('A drop is coming')").wait_for(timeout=SOON)
    forecast.locator("text=Not emerged by step 900, the last one").wait_for(timeout=SOON)
    page.fill("[data-key=learned]", "1.0")
    page.keyboard.press("Enter")
    forecast.locator("text=/At step|Forecast at step 900/").first.wait_for(timeout=SOON)
    assert "below=1" in page.url

    add_rows(log, 920, 1400)  # the training goes on
    page.wait_for_selector("h3:has-text('Classes at step 1400')", timeout=SOON)
    classes = page.locator("section[aria-label='Head classes'] tbody tr")
    classes.nth(1).wait_for(timeout=SOON)
    texts = sorted(classes.all_inner_texts())
    assert texts[0].startswith("0.3\tprevious-token\t")
    assert texts[1].startswith("1.2\tinduction\t1000\t980 to 1000\t")
    forecast.locator("text=Emerged at step").wait_for(timeout=SOON)
    page.click("button:has-text('Live')")
    page.wait_for_selector("section:has-text('Logs') tr:has-text('1400'):has-text('ago')")


def test_several_logs_are_compared(seen, serve, tmp_path):
    for name, falls in {"one": 700, "two": 1000, "three": 1300}.items():
        write_log(tmp_path / f"{name}.csv", falls)
    page = seen.open(serve(tmp_path).address)
    page.wait_for_selector("text=3 curves")
    legend = page.locator("figure[data-figure=curves] .legend li").all_inner_texts()
    assert sorted(legend) == ["one", "three", "two"]
    page.select_option("[data-key=y]", "induction_head")
    page.wait_for_selector("h3:has-text('induction score of every run')")
    page.keyboard.press("3")
    page.select_option("[data-key=run]", "three")
    page.wait_for_selector("h2:text-is('Run three')")
    page.select_option("[data-key=metric]", "eval_loss")
    page.wait_for_selector("figure[data-figure=loss] h3:text-is('eval loss')")


def test_an_exported_log_needs_no_server(seen, tmp_path):
    write_log(tmp_path / "log.csv")
    export_page(Catalog(tmp_path / "log.csv", Learned("loss", below=1.0)), tmp_path / "page.html")
    page = seen.open(f"file://{tmp_path}/page.html")
    page.wait_for_selector("h3:has-text('Classes at step 1500')")
    assert page.locator("section[aria-label='Head classes'] tbody tr").count() == 2
    page.locator("section[aria-label=Forecast] >> text=Emerged at step").wait_for(timeout=SOON)
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("h3:has-text('Classes at step 0')")
    assert seen.asked <= {""}
