"""How quick the explorer is: first paint, all curves, interaction, memory of the server, and the
exported file.

    python benchmarks/view.py [RUNS ...] [STUDIESxRUNS ...]      by default 1000 10000 50x1500

Writes made-up runs into a folder in the system's temporary place, serves them as `emergo view` does
and opens the page in Chromium. First paint is from the start of the navigation to the first curves
on the screen; "all curves" is when the last one is drawn. An interaction is from the event to the
second frame after it, of which the first is painted; the largest of five or ten, of which half show
medians where that differs. With many curves that frame shows the first of them: "whole" is the
longest time until all are on the screen, with what is below them. "forecast" is how long the server
takes for those of one run, "slide" a move of the slider on the page of that run.

With several studies: how long the first opening of the folder takes, in which every run is checked,
then the first paint of a later one, and how long it takes until all curves of another study are on
the screen.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import emergo.store.store
from emergo.view._serve import free_port
from tests.view.conftest import CHROMIUM, FLAGS
from tests.view.made_up import finish, made_up_study

INTERACTIONS = ("colour", "median", "log", "filter", "find", "light", "whole", "point")
INTERACTIONS += ("forecast", "slide")
VIEW = [sys.executable, "-m", "emergo", "view"]
# Two frames: what the first one shows is on the screen when the second one begins.
TIMED = """async (act) => {
  const element = document.querySelector(act.on);
  const begun = performance.now();
  if (act.value === undefined) element.click();
  else { element.value = act.value; element.dispatchEvent(new Event(act.event ?? "change")); }
  await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
  const shown = performance.now() - begun;
  while (document.querySelector("[aria-busy]")) await new Promise(requestAnimationFrame);
  return [shown, performance.now() - begun];
}"""
POINTED = """async ([x, y]) => {
  const over = document.querySelector("figure[data-figure=curves] .u-over");
  const box = over.getBoundingClientRect();
  const begun = performance.now();
  const at = {clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true};
  over.dispatchEvent(new MouseEvent("mousemove", at));
  await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
  return performance.now() - begun;
}"""


def make(folder: Path, size: int) -> int:
    """Make about `size` runs, dims by lengths by ten seeds, and return how many. They have curves
    of 120 evaluations with attention and entropy of eight heads."""
    dims = np.unique(np.geomspace(4, 200, 40).astype(int))[:20].tolist()
    lengths = list(range(8, 8 + max(1, size // 10 // len(dims))))
    emergo.store.store.flush = lambda path: None  # the runs need not survive a power cut
    finish(made_up_study(dims, lengths, 10, 40_000, f"made up {size}"), folder, evaluations=120)
    return len(dims) * len(lengths) * 10


def measure(page, address: str, runs: int) -> dict[str, float]:
    page.goto(address)
    page.wait_for_selector("html[data-painted]", state="attached", timeout=120_000)
    first = page.evaluate("performance.getEntriesByName('emergo:first-paint')[0].startTime")
    page.wait_for_selector(f"text={runs} curves", timeout=300_000)
    every = page.evaluate("performance.now()")
    page.wait_for_timeout(3000)  # the server loads what fits laws meanwhile
    mode = "[data-key=mode]"
    log = {"on": "[data-key=ly]"}
    seed = {"on": "[data-key='seed=3']"}
    run = {"on": ".runs-table td button"}
    found = [
        {"on": "[data-key=find]", "value": word} for word in ("reached", "dim>20", "", "9", "")
    ]
    acts = [
        (
            "colour",
            "all",
            [
                {"on": "[data-key=by]", "value": value}
                for value in ("length", "seed", "state", "dim", "none")
            ],
        ),
        (
            "median",
            "all",
            [
                {"on": mode, "value": value}
                for value in ("median", "all", "median", "all", "median")
            ],
        ),
        *(
            (name, shown, [act] * 5)
            for name, act in (("log", log), ("filter", seed), ("light", run))
            for shown in ("all", "median")
        ),
        ("find", "all", found),
    ]
    slowest: dict[str, float] = dict.fromkeys(INTERACTIONS, 0.0)
    for name, shown, each in acts:
        page.select_option(mode, shown)
        page.wait_for_timeout(1500)
        for act in each:
            soon, whole = page.evaluate(TIMED, act)
            slowest[name], slowest["whole"] = max(slowest[name], soon), max(slowest["whole"], whole)
            page.wait_for_timeout(1500)
    page.select_option("[data-key=mode]", "all")
    page.wait_for_timeout(2000)
    slowest["point"] = max(page.evaluate(POINTED, [0.2 + 0.1 * i, 0.3 + 0.1 * i]) for i in range(5))
    page.keyboard.press("3")
    page.wait_for_selector("section[aria-label=Forecast] .large", timeout=120_000)
    asked = (
        "performance.getEntriesByType('resource').find((each) => "
        "each.name.includes('/api/forecast'))"
    )
    slowest["forecast"] = page.evaluate(f"{asked}.duration")
    slides = [
        {"on": "input[type=range]", "value": str(at), "event": "input"}
        for at in (100, 80, 60, 40, 20)
    ]
    slowest["slide"] = max(page.evaluate(TIMED, slide)[0] for slide in slides)
    return {"first": first / 1000, "every": every / 1000} | slowest


def peak(pid: int) -> float:
    """The most memory that a process has had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Any, str, subprocess.Popen[str]]]:
    """Yield a page, the address of a server of a folder, and the server."""
    from playwright.sync_api import sync_playwright

    command = [*VIEW, str(folder), "--no-browser", "--json", "--port", str(free_port(8642))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    try:
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield browser.new_page(viewport={"width": 1280, "height": 900}), address, server
            browser.close()
    finally:
        server.terminate()
        server.wait()


def one_study(folder: Path, size: int) -> None:
    runs = make(folder / "study", size)
    with opened(folder / "study") as (page, address, server):
        took = measure(page, address, runs)
        memory = peak(server.pid)
    file = folder / "page.html"
    command = [*VIEW, str(folder / "study"), "--export", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{runs} runs, server {memory:.0f} MB, file {file.stat().st_size / 1e6:.1f} MB")
    print(f"    first paint {took['first']:.2f} s, all curves {took['every']:.2f} s")
    inside = ", ".join(f"{name} {took[name]:.0f}" for name in INTERACTIONS)
    print(f"    milliseconds: {inside}", flush=True)


def several_studies(folder: Path, count: int, size: int) -> None:
    """The studies are copies of one: their files are hard links."""
    size = make(folder / "study-0", size)
    for i in range(1, count):
        shutil.copytree(folder / "study-0", folder / f"study-{i}", copy_function=os.link)
    for opening in ("first", "later"):
        with opened(folder) as (page, address, server):
            page.set_default_timeout(600_000)
            begun = time.monotonic()
            page.goto(address)
            page.wait_for_selector("html[data-painted]", state="attached")
            painted = time.monotonic() - begun
            keys = page.locator("[data-key=set] option").all_inner_texts()
            page.wait_for_selector(f"text={size} curves")
            curves = "figure[data-figure=curves]"
            page.evaluate(f"document.querySelector('{curves}').dataset.old = ''")
            begun = time.monotonic()
            page.select_option("[data-key=set]", index=count - 1)
            page.wait_for_selector(f"{curves}:not([data-old]) :text('{size} curves')")
            other = time.monotonic() - begun
            print(
                f"{len(keys)} studies of {size} runs, {opening} opening: first paint "
                f"{painted:.1f} s, another study {other:.1f} s, server {peak(server.pid):.0f} MB",
                flush=True,
            )


def main(words: list[str]) -> None:
    for word in words:
        folder = Path(tempfile.mkdtemp(prefix="emergo-view-"))
        numbers = [int(number) for number in word.split("x")]
        try:
            if len(numbers) == 1:
                one_study(folder, *numbers)
            else:
                several_studies(folder, *numbers)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:] or ["1000", "10000", "50x1500"])
