"""How quick the explorer is: first paint, all curves, interaction, memory of the server, and the
exported file.

    python benchmarks/view.py [RUNS ...]        by default 1000 10000

Writes made-up runs into a folder in the system's temporary place, serves them as `emergo view` does
and opens the page in Chromium. First paint is from the start of the navigation to the first curves
on the screen; "all curves" is when the last one is drawn. An interaction is from the event to the
second frame after it, of which the first is painted; the largest of five or ten, of which half show
medians where that differs. With many curves that frame shows the first of them: "whole" is the
longest time until all are on the screen, with what is below them. "forecast" is how long the server
takes for those of one run, "slide" a move of the slider on the page of that run.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import emergo.store.store
from emergo.view._serve import free_port
from tests.view.conftest import CHROMIUM, FLAGS
from tests.view.made_up import finish, made_up_study

INTERACTIONS = ("colour", "median", "log", "filter", "whole", "point", "forecast", "slide")
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


def make(folder: Path, size: int) -> None:
    """About `size` runs: dims by lengths by ten seeds, curves of 120 evaluations with attention and
    entropy of eight heads."""
    dims = np.unique(np.geomspace(4, 200, 40).astype(int))[:20].tolist()
    lengths = list(range(8, 8 + max(1, size // 10 // len(dims))))
    emergo.store.store.flush = lambda path: None  # the runs need not survive a power cut
    finish(made_up_study(dims, lengths, 10, 40_000, f"made up {size}"), folder, evaluations=120)


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
            for name, act in (("log", log), ("filter", seed))
            for shown in ("all", "median")
        ),
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


def main(sizes: list[int]) -> None:
    from playwright.sync_api import sync_playwright

    print(
        "  runs  first paint  all curves   colour   median      log   filter    whole    point "
        "forecast   slide   server   file"
    )
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="emergo-view-"))
        try:
            make(folder / "study", size)
            runs = len(list((folder / "study" / "runs").glob("[0-9a-f]*")))
            emergo_view = [sys.executable, "-m", "emergo", "view", str(folder / "study")]
            command = [*emergo_view, "--no-browser", "--json", "--port", str(free_port(8642))]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"]
            with sync_playwright() as started:
                browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                took = measure(page, address, runs)
                browser.close()
            memory = peak(server.pid)
            server.terminate()
            server.wait()
            file = folder / "page.html"
            subprocess.run(
                [*emergo_view, "--export", str(file)], check=True, stdout=subprocess.DEVNULL
            )
            inside = "".join(f"{took[name]:6.0f} ms" for name in INTERACTIONS)
            times = f"{took['first']:8.2f} s {took['every']:8.2f} s  {inside}"
            print(
                f"{runs:6} {times} {memory:5.0f} MB {file.stat().st_size / 1e6:4.1f} MB", flush=True
            )
            time.sleep(1)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1000, 10_000])
