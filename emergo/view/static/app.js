// The application: the open set, the current view, keyboard shortcuts, and polling of the server.
import { openData } from "./data.js";
import { choice, el, refill } from "./dom.js";
import { LABELS, labelKey, labels } from "./labels.js";
import { LawView } from "./law.js";
import { LiveView, remember } from "./live.js";
import { RunView } from "./run.js";
import { RunsView } from "./runs.js";
import { onState, setState, state } from "./state.js";

const VIEWS = { runs: ["All runs", RunsView], law: ["The law", LawView], run: ["One run", RunView], live: ["Live", LiveView] };
const KEYS = [
  ["1 to 4", "all runs, the law, one run, live"],
  ["← and →", "previous run, next run"],
  ["+ and −", "zoom the curves"],
  ["Esc", "clear the highlight, end a comparison, reset the zoom"],
  ["Tab", "move through controls, plots and tables"],
];
const SOON = 2000; // milliseconds between polls while a study is incomplete
const LATER = 6000;

class App {
  history = new Map();
  rows = [];
  columns = [];
  constants = {};

  async start() {
    this.header = el("header", {});
    this.alert = el("p", { class: "alert", role: "alert", hidden: true });
    this.main = el("main", { id: "main", tabindex: "-1" });
    const keys = el("details", { class: "keys" }, el("summary", { text: "Keys" }), el("dl", {}, KEYS.flatMap(([key, what]) => [el("dt", { text: key }), el("dd", { text: what })])));
    const skip = el("a", { href: "#main", class: "skip", text: "Skip to the plots", onclick: (event) => (event.preventDefault(), this.main.focus()) });
    document.body.append(skip, this.header, this.alert, this.main, el("footer", {}, keys));
    try {
      this.data = await openData();
      this.index = await this.data.index();
      await this.#open();
    } catch (error) {
      return this.tell(error.message);
    }
    onState(() => this.render());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#rebuild());
    addEventListener("keydown", (event) => this.#key(event));
    document.title = `emergo: ${this.index.folder}`;
    this.render();
    this.#poll();
  }

  tell(message) {
    this.alert.textContent = message;
    this.alert.hidden = !message;
  }

  firstPaint() {
    if (this.painted) return;
    this.painted = true;
    performance.mark("emergo:first-paint");
    document.documentElement.dataset.painted = "";
  }

  /** Makes the server import the fitting code in advance, which takes seconds the first time. */
  warm() {
    if (this.warmed || !this.data.live || !this.set.law) return;
    this.warmed = true;
    setTimeout(() => this.data.law(this.set.key, this.set.law.y, this.set.law.x, {}).catch(() => {}), 500);
  }

  /** Loads the set in the address, or the first set. */
  async #open() {
    const { sets } = this.index;
    const set = sets.find((each) => each.key === state().set) ?? sets.find((each) => each.runs) ?? sets[0];
    if (!set) return;
    const read = await this.data.table(set.key);
    const names = Object.keys(read.columns);
    this.finished = read.columns.identity.map((_, i) => Object.fromEntries(names.map((name) => [name, read.columns[name][i]])));
    this.constants = read.constants;
    this.set = { ...set, version: read.version };
    this.merge();
  }

  /** Joins the finished runs with those in training, and with the names and tags that the user gave. */
  merge() {
    const known = labels();
    const training = this.#training();
    const labelled = Object.keys(known).length ? (row) => ({ ...known[labelKey(this, row.identity)], ...row }) : (row) => row;
    this.rows = [...this.finished, ...training].map(labelled);
    const fields = training.length ? ["state", "seed", ...Object.keys(training[0].axes)] : [];
    const given = LABELS.filter((label) => this.rows.some((row) => row[label]));
    this.columns = [...new Set([...Object.keys(this.finished[0] ?? {}), ...fields, ...given])].filter((name) => name !== "identity");
    this.cellAxes = this.set.axes.filter((axis) => this.columns.includes(axis));
    this.values = new Map();
    this.byRun = new Map(this.rows.map((row) => [row.identity, row]));
  }

  /** Returns the distinct values of a column in the order of the runs, cached. */
  distinct(name) {
    if (!this.values.has(name)) this.values.set(name, [...new Set(this.rows.map((row) => row[name] ?? null))]);
    return this.values.get(name);
  }

  /** Returns the runs of this set that are in training, as rows. */
  #training() {
    const ended = new Set(this.finished.map((row) => row.identity));
    const runs = (this.status ?? []).flatMap((study) => study.training_runs ?? []);
    return runs.filter((run) => run.set === this.set.key && !ended.has(run.identity)).map((run) => ({ ...run.axes, ...run, steps: run.step, state: "training" }));
  }

  /** Returns the highlighted run and the one that it is compared with, as far as they exist. */
  highlighted() {
    return [...new Set([state().run, state().with])].map((run) => this.byRun.get(run)).filter(Boolean);
  }

  async render() {
    if (state().set && state().set !== this.set?.key && this.index.sets.some((each) => each.key === state().set)) {
      try {
        await this.#open();
      } catch (error) {
        return this.tell(error.message);
      }
      this.#close();
    }
    this.#header();
    const name = this.#shownView();
    if (!this.set || (!this.rows.length && name !== "live")) {
      this.#close();
      const why = this.index.notes.join("; ") || "New runs appear automatically.";
      return refill(this.main, el("p", { class: "message", text: `No run has finished yet. ${why}` }));
    }
    if (this.name !== name) {
      this.#close();
      this.view = new VIEWS[name][1](this);
      this.name = name;
      this.main.replaceChildren(this.view.node);
    }
    this.view.update();
  }

  #close() {
    this.view?.destroy();
    this.view = null;
    this.name = null;
  }

  #rebuild() {
    this.#close();
    this.render();
  }

  /** Returns the view that is shown without a choice: of a single log its page, otherwise all runs. */
  #firstView() {
    return this.set?.kind === "log" && this.rows.length === 1 ? "run" : "runs";
  }

  #shownView() {
    return state().view in VIEWS ? state().view : this.#firstView();
  }

  #choose(view) {
    setState({ view: view === this.#firstView() ? null : view });
  }

  #header() {
    const { sets, folder } = this.index;
    const view = this.#shownView();
    const link = ([name, [title]]) => el("button", { type: "button", class: "tab", "aria-current": name === view ? "page" : null, "data-key": `view ${name}`, onclick: () => this.#choose(name), text: title });
    const label = (set) => `${set.key} (${set.planned && set.planned > set.runs ? `${set.runs} of ${set.planned}` : set.runs} ${(set.planned || set.runs) === 1 ? "run" : "runs"})`;
    const fresh = { metric: null, below: null, above: null, run: null, with: null, filter: null, group: null, cols: null, zoom: null, terms: null, across: null, law: null, page: null, sort: null, at: null, family: null, y: null, by: null, ly_of: null };
    const pick = sets.length > 1 ? choice("Set of runs", sets.map((set) => [set.key, label(set)]), this.set?.key, (set) => setState({ set, ...fresh }), "set") : null;
    const what = this.set ? (sets.length > 1 ? folder : `${folder}: ${label(this.set)}`) : folder;
    refill(this.header, el("h1", {}, el("span", { class: "brand", text: "emergo" }), el("span", { class: "folder", text: what })), pick, el("nav", { "aria-label": "Views" }, Object.entries(VIEWS).map(link)));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea, .scroll")) return;
    const names = Object.keys(VIEWS);
    if (names[Number(event.key) - 1]) this.#choose(names[Number(event.key) - 1]);
    else if (event.key === "Escape") setState({ run: this.name === "run" ? state().run : null, with: null, zoom: null });
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.#step(event.key === "ArrowRight" ? 1 : -1);
    else if (event.key === "+" || event.key === "-") this.view?.zoomBy?.(event.key === "+" ? 0.7 : 1 / 0.7);
    else return;
    event.preventDefault();
  }

  #step(by) {
    if (this.name === "run") return this.view.step?.(by);
    const runs = this.name === "runs" ? this.view.visible : this.rows;
    const at = runs.findIndex((row) => row.identity === state().run);
    if (runs.length) setState({ run: runs[at < 0 ? 0 : (at + by + runs.length) % runs.length].identity });
  }

  /** Polls the server while the page is visible. */
  async #poll() {
    let trains = false;
    // Reading the progress of a large study takes as long as reading thousands of its curves.
    while (this.view?.complete === false) await new Promise((wait) => setTimeout(wait, 200));
    if (!document.hidden || !this.status) {
      try {
        const { status, versions } = await this.data.status();
        this.status = status;
        trains = this.set?.kind === "log" || status.some((each) => each.complete === false);
        remember(this.history, status);
        const fresh = Object.entries(versions).some(([key, version]) => (this.index.sets.find((set) => set.key === key) ?? {}).version !== version);
        if (fresh) await this.#refresh();
        else if (this.#moved() || this.name === "live") this.render();
        if (this.lost) this.tell("");
        this.lost = false;
      } catch {
        this.lost = true;
        this.tell("The server does not respond: emergo view has stopped or is busy. The page shows the last data received.");
      }
    }
    if (this.data.live) setTimeout(() => this.#poll(), trains ? SOON : LATER);
  }

  /** Merges the runs in training if they have moved on, and returns whether they have. */
  #moved() {
    if (!this.set) return false;
    const now = JSON.stringify(this.#training().map((run) => [run.identity, run.step]));
    if (now === (this.then ?? "[]")) return false;
    this.then = now;
    this.merge();
    return true;
  }

  async #refresh() {
    const before = this.set?.version;
    this.index = await this.data.index();
    const held = this.index.sets.find((set) => set.key === this.set?.key);
    if (!this.set || !held || held.version !== before) await this.#open();
    this.render();
  }
}

new App().start();
