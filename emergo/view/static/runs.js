// The view of all runs: their curves, or the median of each cell with a band over seeds.
import { colours, ink } from "./colour.js";
import { Curves } from "./curves.js";
import { button, choice, csv, el, refill, shown, tick, words } from "./dom.js";
import { filterControls, keeps } from "./filter.js";
import { Parallel } from "./parallel.js";
import { Plot, domain, line } from "./plot.js";
import { part, setState, state } from "./state.js";
import { CellTable, RunTable } from "./table.js";
import { config, describeRun } from "./words.js";

const MANY = 200; // more curves are drawn one device pixel wide, which is ten times as fast

export class RunsView {
  constructor(app) {
    this.app = app;
    this.controls = el("div", { class: "controls", role: "group", "aria-label": "Display options" });
    this.plot = new Plot("Curves", { name: "curves", height: 420 });
    this.parallel = new Parallel(app);
    this.table = new RunTable(app);
    this.cells = new CellTable(app);
    this.chosen = el("section", { class: "card", "aria-label": "The highlighted run" });
    this.shown = new Map();
    const main = el("div", { class: "main" }, this.plot.node, this.chosen, this.parallel.figure.node, this.cells.node, this.table.node);
    this.node = el("div", { class: "split" }, this.controls, main);
  }

  update() {
    const { set, rows } = this.app;
    // The name of a curve with several numbers shows the largest; each of its columns has a name too.
    const names = Object.entries(set.curves).flatMap(([name, all]) => [name, ...(all.length > 1 ? all.map((index) => [name, ...index].join("_")) : [])]);
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
    this.plot.node.hidden = !names.length;
    if (names.length) this.#load();
    else this.app.firstPaint();
    if (!this.plot.busy) this.#below();
  }

  /** Updates the parts below the curves, after the curves and only if they have changed. */
  #below() {
    const { set } = this.app;
    const held = [set.key, set.version, this.filter];
    const changed = (name, ...parts) => {
      const before = this.shown.get(name);
      this.shown.set(name, JSON.stringify([held, parts]));
      return this.shown.get(name) !== before;
    };
    if (changed("cells")) this.cells.update(this.filter);
    if (changed("parallel", this.by)) this.parallel.update(this.visible, this.palette, this.by, this.filter);
    if (changed("table", state().sort, state().page, state().run)) this.table.update(this.visible);
  }

  #controls(names) {
    const { columns, rows } = this.app;
    const all = columns.filter((name) => this.app.distinct(name).length > 1);
    const groups = [
      el("h2", { text: "All runs" }),
      names.length ? choice("Curve", names.map((name) => [name, words(name)]), this.y, (y) => setState({ y, zoom: null }), "y") : null,
      choice("Colour by", [["none", "nothing"], ...all.map((name) => [name, words(name)])], this.by || "none", (by) => setState({ by }), "by"),
      names.length ? choice("Show", [["all", "every run"], ["median", "median, band over seeds"]], this.median ? "median" : "all", (mode) => setState({ mode }), "mode") : null,
      names.length ? el(
        "div",
        { class: "row" },
        tick("log steps", this.axes.x, (on) => setState({ lx: on ? null : "0", zoom: null }), "lx"),
        tick("log values", this.axes.y, (on) => setState({ ly: on ? "1" : null, zoom: null }), "ly"),
      ) : null,
      names.length && this.axes.x ? el("p", { class: "quiet", text: "The log scale leaves out step 0." }) : null,
      isZoomed() ? button("Reset zoom", () => setState({ zoom: null })) : null,
      el("h3", { text: "Filter" }),
      el("p", { class: "quiet", text: `${this.visible.length} of ${rows.length} runs` }),
      ...filterControls(this.app, this.filter),
    ];
    refill(this.controls, groups.filter(Boolean));
  }

  /** Loads the missing curves, and draws the loaded ones as they arrive. */
  #load() {
    const runs = this.visible.map((row) => row.identity);
    const points = runs.length <= 200 ? 400 : runs.length <= 2000 ? 128 : 64;
    const key = JSON.stringify([this.app.set.key, this.app.set.version, this.y, points, this.filter]);
    const look = JSON.stringify([this.by, this.median, this.axes, part("zoom", null)]);
    const [same, alike] = [key === this.loading, look === this.look];
    this.look = look;
    if (same && alike) return this.plot.view && this.plot.remark();
    if (same) return this.curves.runs.size && this.#frame();
    this.loading = key;
    this.curves = new Curves(this.visible, this.app.cellAxes);
    this.complete = false;
    let [framed, stale] = [false, false];
    const arrived = (curves) => {
      const fresh = this.curves.add(curves);
      stale = framed;
      if (!framed || this.median || this.#grown(fresh)) this.#soon(framed ? 300 : 0);
      else this.plot.add(this.#lines(fresh));
      if (framed) this.#note();
      framed = true;
    };
    const ended = () => this.loading !== key;
    const finish = () => {
      if (ended()) return;
      this.complete = true;
      this.#soon(0, (this.median && stale) || !framed || this.curves.runs.size < 0.8 * runs.length);
      this.app.warm();
    };
    this.app.data.curves(this.app.set.key, this.y, runs, points, arrived, ended).then(finish, (error) => this.app.tell(error.message));
    if (!runs.length) this.#frame();
  }

  /** Returns true if curves extend beyond the current axes. */
  #grown(curves) {
    if (part("zoom", null) || !this.drawnDomain) return false;
    const [[, right], [bottom, top]] = this.drawnDomain;
    const [, last, low, high] = this.curves.reach(this.axes, curves);
    return last > right || low < bottom || high > top;
  }

  #soon(wait, needed = true) {
    if (!needed) return;
    clearTimeout(this.waiting);
    if (wait === 0) return this.#frame();
    this.waiting = setTimeout(() => this.#frame(), wait);
  }

  #lines(curves) {
    const count = this.complete ? this.curves.runs.size : this.visible.length; // not every run has curves
    const alpha = Math.min(0.9, Math.max(0.14, 7 / Math.sqrt(Math.max(count, 1))));
    return curves.map(({ row, x, y }) => ({ x, y, colour: this.palette.of(row[this.by]), alpha, width: thin(count, 1.2) }));
  }

  #medians(cells) {
    const shade = Math.max(0.05, 0.2 / Math.sqrt(cells.length / 8 + 1));
    return cells.map(({ row, x, y, low, high }) => ({ x, y, low, high, shade, colour: this.palette.of(row[this.by]), width: thin(cells.length, 2) }));
  }

  #frame() {
    clearTimeout(this.waiting);
    const zoom = part("zoom", null);
    const [left, right, low, high] = this.curves.reach(this.axes);
    const cells = this.median ? this.curves.cells(this.axes.x) : null;
    const xs = zoom ? zoom.slice(0, 2) : domain([left, right], this.axes.x, 0.01);
    const ys = zoom ? zoom.slice(2) : domain(cells ? this.curves.heights(this.axes) : [low, high], this.axes.y);
    this.drawnDomain = [xs, ys];
    this.plot.setLegend(this.by, this.palette.entries, (value) => setState({ filter: { ...this.filter, [this.by]: [value] } }));
    this.plot.heading.textContent = this.median ? `${words(this.y)}: median of each cell, band over seeds` : `${words(this.y)} of every run`;
    const several = (this.app.set.curves[this.y] ?? [[]])[0].length > 0;
    this.plot.set({
      x: { label: "step", log: this.axes.x, domain: xs },
      y: { label: several ? `${words(this.y)}, largest of all` : words(this.y), log: this.axes.y, domain: ys },
      curves: cells ? this.#medians(cells) : this.#lines([...this.curves.runs.values()]),
      mark: (context, view) => this.#mark(context, view),
      hover: (left, top, view) => this.#hover(left, top, view),
      pick: () => this.near && setState({ run: this.near }),
      zoom: (range) => setState({ zoom: range }),
      painted: () => this.app.firstPaint(),
      finished: () => this.#below(),
      csv: () => this.#csv(cells),
      summary: `${words(this.y)} against step for ${this.curves.runs.size} runs, coloured by ${this.by || "nothing"}. The table below lists the runs.`,
    });
    this.#note();
  }

  #csv(cells) {
    if (cells) {
      const rows = cells.flatMap((cell) => Array.from(cell.x, (x, i) => [...this.app.cellAxes.map((axis) => cell.row[axis]), cell.runs, x, cell.y[i], cell.low[i], cell.high[i]]));
      return csv([...this.app.cellAxes, "runs", "step", "median", "quantile_25", "quantile_75"], rows);
    }
    const heads = ["identity", ...this.app.cellAxes, "seed", "step", this.y];
    const rows = [...this.curves.runs.values()].flatMap(({ run, row, x, y }) => {
      const start = [run, ...this.app.cellAxes.map((axis) => row[axis]), row.seed];
      return Array.from(x, (step, i) => [...start, step, y[i]]);
    });
    return csv(heads, rows);
  }

  #hover(left, top, view) {
    let [best, near] = [24, null];
    if (left >= 0) {
      for (const { run, x, y } of this.curves.runs.values()) {
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
    const axes = { x: { log: this.axes.x }, y: { log: this.axes.y } };
    for (const run of new Set([state().run, this.near])) {
      const curve = this.curves.runs.get(run);
      if (!curve) continue;
      line(context, { ...curve, colour: ink("ground"), width: 5.5 }, view, axes);
      line(context, { ...curve, colour: ink("text"), width: 2.4 }, view, axes);
    }
  }

  #note() {
    const { rows, runs } = this.curves;
    const row = rows.get(this.near) ?? rows.get(state().run);
    const hint = this.median
      ? `${runs.size} runs; the band covers the middle half of the seeds; a finished run keeps its last value`
      : `${runs.size} curves${runs.size < this.visible.length ? ` of ${this.visible.length} runs` : ""}; hover to highlight, click to select, drag to zoom, double-click to reset`;
    this.plot.note.textContent = row ? describeRun(this.app, row) : hint;
  }

  /** Zooms around the centre, for keyboard users. */
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
    clearTimeout(this.waiting);
    for (const figure of [this.plot, this.parallel.figure]) figure.destroy();
  }
}

const isZoomed = () => part("zoom", null) !== null;

/** Returns the line width for so many curves; `wide` if they are few. */
const thin = (count, wide) => (count > MANY ? 1 / (devicePixelRatio || 1) : wide);

/** Returns the distance in pixels between a curve and a point. */
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
