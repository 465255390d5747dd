// All runs: their curves, filtered and coloured by any axis, or the median of each cell with its band over seeds.
import { colours } from "./colour.js";
import { button, choice, csv, el, refill, shown, tick, words } from "./dom.js";
import { filterControls, keeps } from "./filter.js";
import { Parallel } from "./parallel.js";
import { Plot, band, domain, line } from "./plot.js";
import { part, setState, state } from "./state.js";
import { RunTable } from "./table.js";
import { config, describeRun } from "./words.js";

const MANY = 2000; // runs from which what is below the curves is drawn after them
const BAND = [0.25, 0.75]; // quantiles over the seeds of a cell

export class RunsView {
  constructor(app) {
    this.app = app;
    this.controls = el("div", { class: "controls", role: "group", "aria-label": "What is shown" });
    this.plot = new Plot("Curves", { name: "curves", height: 420 });
    this.parallel = new Parallel(app);
    this.table = new RunTable(app);
    this.chosen = el("section", { class: "card", "aria-label": "The highlighted run" });
    this.shown = new Map();
    const main = el("div", { class: "main" }, this.plot.node, this.chosen, this.parallel.figure.node, this.table.node);
    this.node = el("div", { class: "split" }, this.controls, main);
  }

  update() {
    const { set, rows } = this.app;
    const names = Object.keys(set.curves);
    const now = state();
    this.y = names.includes(now.y) ? now.y : (["loss", "kl_teacher"].find((name) => names.includes(name)) ?? names[0]);
    this.by = this.app.columns.includes(now.by) ? now.by : now.by === "none" ? "" : (set.axes.find((axis) => this.app.columns.includes(axis)) ?? "");
    this.axes = { x: now.lx !== "0", y: now.ly === "1" };
    this.median = now.mode === "median";
    this.filter = part("filter", {});
    this.visible = rows.filter((row) => keeps(this.filter, row));
    this.palette = colours(this.by, this.by ? this.app.distinct(this.by) : []);
    this.#controls(names);
    this.#chosenRun();
    clearTimeout(this.later);
    const rest = () => {
      this.parallel.update(this.visible, this.palette, this.by, this.filter);
      this.table.update(this.visible);
    };
    if (rows.length <= MANY) rest();
    else this.later = setTimeout(rest, 60); // the curves answer first
    this.plot.node.hidden = !names.length;
    if (names.length) this.#load();
    else this.app.firstPaint();
  }

  #controls(names) {
    const { columns, rows } = this.app;
    const all = columns.filter((name) => this.app.distinct(name).length > 1);
    const groups = [
      el("h2", { text: "All runs" }),
      names.length ? choice("Curve", names.map((name) => [name, words(name)]), this.y, (y) => setState({ y, zoom: null }), "y") : null,
      choice("Colour by", [["none", "nothing"], ...all.map((name) => [name, words(name)])], this.by || "none", (by) => setState({ by }), "by"),
      names.length ? choice("Show", [["all", "every run"], ["median", "median and band over seeds"]], this.median ? "median" : "all", (mode) => setState({ mode }), "mode") : null,
      names.length ? el(
        "div",
        { class: "row" },
        tick("log steps", this.axes.x, (on) => setState({ lx: on ? null : "0", zoom: null }), "lx"),
        tick("log values", this.axes.y, (on) => setState({ ly: on ? "1" : null, zoom: null }), "ly"),
      ) : null,
      now_zoomed() ? button("Whole range", () => setState({ zoom: null })) : null,
      el("h3", { text: "Filter" }),
      el("p", { class: "quiet", text: `${this.visible.length} of ${rows.length} runs` }),
      ...filterControls(this.app, this.filter),
    ];
    refill(this.controls, groups.filter(Boolean));
  }

  #load() {
    const runs = this.visible.map((row) => row.identity);
    const points = runs.length <= 200 ? 400 : runs.length <= 2000 ? 128 : 64;
    const key = JSON.stringify([this.app.set.key, this.app.set.version, this.y, points, this.by, this.median, this.axes, this.filter, part("zoom", null), matchMedia("(prefers-color-scheme: dark)").matches]);
    if (key === this.loading) {
      if (this.plot.view) this.plot.remark();
      return;
    }
    this.loading = key;
    this.held = new Map();
    this.bounds = new Map();
    this.byRun = new Map(this.visible.map((row) => [row.identity, row]));
    this.complete = false;
    let [framed, stale] = [false, false];
    const arrived = (curves) => {
      for (const [run, curve] of curves) {
        if (!curve[0].length) continue;
        this.held.set(run, curve);
        this.bounds.set(run, ends(curve, this.axes));
      }
      stale = framed;
      if (!framed || this.median || this.#grown(curves)) this.#soon(framed ? 300 : 0);
      else this.plot.add(this.#lines([...curves.keys()]));
      if (framed) this.#note();
      framed = true;
    };
    const ended = () => this.loading !== key;
    const finish = () => {
      if (ended()) return;
      this.complete = true;
      this.#soon(0, (this.median && stale) || !framed || this.held.size < 0.8 * runs.length);
      this.app.warm();
    };
    this.app.data.curves(this.app.set.key, this.y, runs, points, arrived, ended).then(finish, (error) => this.app.tell(error.message));
    if (!runs.length) this.#frame();
  }

  /** Whether curves reach beyond the axes that are drawn. */
  #grown(curves) {
    if (part("zoom", null) || !this.drawnDomain) return false;
    const [[, right], [bottom, top]] = this.drawnDomain;
    for (const run of curves.keys()) {
      const { x, y } = this.bounds.get(run) ?? { x: [0, 0], y: [bottom, top] };
      if (x[1] > right || y[0] < bottom || y[1] > top) return true;
    }
    return false;
  }

  #soon(wait, needed = true) {
    if (!needed) return;
    clearTimeout(this.waiting);
    if (wait === 0) return this.#frame();
    this.waiting = setTimeout(() => this.#frame(), wait);
  }

  #lines(runs) {
    const count = this.complete ? this.held.size : this.visible.length; // some runs have no curves
    const alpha = Math.min(0.9, Math.max(0.12, 6 / Math.sqrt(Math.max(count, 1))));
    return runs
      .filter((run) => this.held.has(run))
      .map((run) => ({ run, x: this.held.get(run)[0], y: this.held.get(run)[1], colour: this.palette.of(this.byRun.get(run)?.[this.by]), alpha, width: 1.2 }));
  }

  #frame() {
    const curves = [...this.held.values()];
    const zoom = part("zoom", null);
    const reach = [...this.bounds.values()];
    const xs = zoom ? zoom.slice(0, 2) : domain(reach.flatMap((each) => each.x), this.axes.x, 0.01);
    const cells = this.median ? this.#cells() : [];
    const heights = this.median ? cells.flatMap((cell) => [...cell.low, ...cell.high]) : reach.flatMap((each) => each.y);
    const ys = zoom ? zoom.slice(2) : domain(heights, this.axes.y);
    this.drawnDomain = [xs, ys];
    const lines = this.median ? cells.map((cell) => ({ x: cell.x, y: cell.middle, colour: cell.colour, width: 2, run: null })) : this.#lines([...this.held.keys()]);
    this.plot.setLegend(this.by, this.palette.entries, (value) => setState({ filter: { ...this.filter, [this.by]: [value] } }));
    this.plot.heading.textContent = this.median ? `${words(this.y)}: median of each cell, band over seeds` : `${words(this.y)} of every run`;
    const several = (this.app.set.curves[this.y] ?? [[]])[0].length > 0;
    this.plot.set({
      x: { label: "step", log: this.axes.x, domain: xs },
      y: { label: several ? `${words(this.y)}, largest of all` : words(this.y), log: this.axes.y, domain: ys },
      curves: lines,
      under: (context, view) => cells.forEach((cell) => band(context, cell.x, cell.low, cell.high, cell.colour, view, Math.max(0.05, 0.2 / Math.sqrt(cells.length / 8 + 1)))),
      mark: (context, view) => this.#mark(context, view),
      hover: (left, top, view) => this.#hover(left, top, view),
      pick: () => this.near && setState({ run: this.near }),
      zoom: (range) => setState({ zoom: range }),
      painted: () => this.app.firstPaint(),
      csv: () => this.#csv(cells),
      summary: `${words(this.y)} against step for ${curves.length} runs, coloured by ${this.by || "nothing"}. The table below holds the runs.`,
    });
    this.#note();
  }

  /** One entry per cell: median and quantiles over its runs on common steps. A run that has ended counts with its last value. */
  #cells() {
    const groups = new Map();
    for (const [run, curve] of this.held) {
      const row = this.byRun.get(run);
      const key = JSON.stringify(this.app.cellAxes.map((axis) => row[axis]));
      if (!groups.has(key)) groups.set(key, { row, curves: [] });
      groups.get(key).curves.push(curve);
    }
    const count = groups.size > 200 ? 48 : 140;
    return [...groups.values()].map(({ row, curves }) => {
      const first = Math.min(...curves.map(([x]) => (this.axes.x && x[0] === 0 && x.length > 1 ? x[1] : x[0])));
      const last = Math.max(...curves.map(([x]) => x[x.length - 1]));
      const at = (share) => (this.axes.x ? Math.max(first, 1e-9) * (last / Math.max(first, 1e-9)) ** share : first + (last - first) * share);
      const x = Array.from({ length: count }, (_, i) => at(i / (count - 1)));
      const columns = curves.map((curve) => resampled(curve, x));
      const quantiles = x.map((_, i) => {
        const sorted = columns.map((column) => column[i]).sort((a, b) => a - b);
        return [0.5, ...BAND].map((share) => quantile(sorted, share));
      });
      return { row, runs: curves.length, x, colour: this.palette.of(row[this.by]), middle: quantiles.map((q) => q[0]), low: quantiles.map((q) => q[1]), high: quantiles.map((q) => q[2]) };
    });
  }

  #csv(cells) {
    if (this.median) {
      const rows = cells.flatMap((cell) => cell.x.map((x, i) => [...this.app.cellAxes.map((axis) => cell.row[axis]), cell.runs, x, cell.middle[i], cell.low[i], cell.high[i]]));
      return csv([...this.app.cellAxes, "runs", "step", "median", "quantile_25", "quantile_75"], rows);
    }
    const heads = ["identity", ...this.app.cellAxes, "seed", "step", this.y];
    const rows = [...this.held].flatMap(([run, [x, y]]) => {
      const row = this.byRun.get(run);
      const start = [run, ...this.app.cellAxes.map((axis) => row[axis]), row.seed];
      return [...x].map((step, i) => [...start, step, y[i]]);
    });
    return csv(heads, rows);
  }

  #hover(left, top, view) {
    let [best, near] = [24, null];
    if (left >= 0) {
      for (const [run, [x, y]] of this.held) {
        const distance = away(x, y, left, top, view, this.axes);
        if (distance < best) [best, near] = [distance, run];
      }
    }
    if (near === this.near) return;
    this.near = near;
    this.plot.remark();
    this.#note();
  }

  #mark(context, view) {
    for (const run of new Set([state().run, this.near])) {
      const curve = this.held?.get(run);
      if (!curve) continue;
      const style = getComputedStyle(document.documentElement);
      const [ground, text] = ["--ground", "--text"].map((name) => style.getPropertyValue(name));
      line(context, { x: curve[0], y: curve[1], colour: ground, width: 5.5 }, view, { x: { log: this.axes.x }, y: { log: this.axes.y } });
      line(context, { x: curve[0], y: curve[1], colour: text, width: 2.4 }, view, { x: { log: this.axes.x }, y: { log: this.axes.y } });
    }
  }

  #note() {
    const row = this.byRun.get(this.near) ?? this.byRun.get(state().run);
    const hint = this.median
      ? `${this.held.size} runs; the band holds the middle half of the seeds; a run that has ended counts with its last value`
      : `${this.held.size} curves${this.held.size < this.visible.length ? ` of ${this.visible.length} runs` : ""}; point at one to highlight it, press to keep it, drag to zoom, double-click for the whole`;
    this.plot.note.textContent = row ? describeRun(this.app, row) : hint;
  }

  /** Zooms about the middle, for those without a mouse. */
  zoomBy(factor) {
    if (!this.drawnDomain) return;
    const ends = this.drawnDomain.flatMap(([low, high], i) => {
      const log = i ? this.axes.y : this.axes.x;
      const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high];
      const [middle, half] = [(a + b) / 2, ((b - a) / 2) * factor];
      return [middle - half, middle + half].map((value) => Number((log ? Math.exp(value) : value).toPrecision(4)));
    });
    setState({ zoom: ends });
  }

  #chosenRun() {
    const row = this.app.rows.find((each) => each.identity === state().run);
    this.chosen.hidden = !row;
    if (!row) return;
    refill(
      this.chosen,
      el("h3", { text: "The highlighted run" }),
      el("p", { text: describeRun(this.app, row) }),
      el("div", { class: "row" }, button("Open this run", () => setState({ view: "run" })), button("Clear", () => setState({ run: null }))),
      config(this.app, row),
    );
  }

  destroy() {
    this.loading = null;
    clearTimeout(this.later);
    clearTimeout(this.waiting);
    for (const figure of [this.plot, this.parallel.figure]) figure.destroy();
  }
}

const now_zoomed = () => part("zoom", null) !== null;

/** The least and the largest step and value of a curve that the axes can show. */
function ends([xs, ys], log) {
  const [x, y] = [[Infinity, -Infinity], [Infinity, -Infinity]];
  for (let i = 0; i < xs.length; i += 1) {
    if ((log.y && !(ys[i] > 0)) || (log.x && !(xs[i] > 0))) continue;
    if (xs[i] < x[0]) x[0] = xs[i];
    if (xs[i] > x[1]) x[1] = xs[i];
    if (ys[i] < y[0]) y[0] = ys[i];
    if (ys[i] > y[1]) y[1] = ys[i];
  }
  return { x, y };
}

function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const left = Math.floor(place);
  return sorted[left] + (place - left) * ((sorted[left + 1] ?? sorted[left]) - sorted[left]);
}

function resampled([x, y], at) {
  let i = 0;
  return at.map((value) => {
    while (i < x.length - 1 && x[i + 1] < value) i += 1;
    if (value <= x[0]) return y[0];
    if (i >= x.length - 1) return y[y.length - 1];
    return y[i] + ((value - x[i]) / (x[i + 1] - x[i])) * (y[i + 1] - y[i]);
  });
}

/** How far in pixels a curve passes from a place. */
function away(x, y, left, top, view, log) {
  let [low, high] = [0, x.length - 1];
  if (high < 1) return Infinity;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((log.x && !(x[middle] > 0)) || view.x(x[middle]) < left) low = middle;
    else high = middle;
  }
  const [x0, x1] = [log.x && !(x[low] > 0) ? 0 : view.x(x[low]), view.x(x[high])];
  if (left < x0 - 12 || left > x1 + 12) return Infinity;
  const share = x1 > x0 ? Math.min(1, Math.max(0, (left - x0) / (x1 - x0))) : 0;
  return Math.abs(view.y(y[low]) + share * (view.y(y[high]) - view.y(y[low])) - top);
}
