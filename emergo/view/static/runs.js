// The view of all runs: their curves, or the median of each cell with a band over seeds.
import { colours, ink } from "./colour.js";
import { Curves } from "./curves.js";
import { button, choice, csv, curveWords, el, panel, refill, tick, words } from "./dom.js";
import { filterControls, keeps } from "./filter.js";
import { labelFields } from "./labels.js";
import { soFar } from "./live.js";
import { Matrix } from "./matrix.js";
import { Parallel } from "./parallel.js";
import { Plot, domain, line, point } from "./plot.js";
import { part, setState, state } from "./state.js";
import { CellTable, RunTable } from "./table.js";
import { describeRun, differences } from "./words.js";

const MANY = 200; // more curves are drawn one device pixel wide, which is ten times as fast

export class RunsView {
  constructor(app) {
    this.app = app;
    const [side, controls] = panel("Curves, colours and filter");
    this.controls = controls;
    this.plot = new Plot("Curves", { name: "curves", height: 420 });
    this.parallel = new Parallel(app);
    this.matrix = new Matrix(app);
    this.table = new RunTable(app);
    this.cells = new CellTable(app);
    this.chosen = el("section", { class: "card", "aria-label": "The highlighted run" });
    this.shown = new Map();
    const main = el("div", { class: "main" }, this.plot.node, this.chosen, this.parallel.figure.node, this.matrix.node, this.cells.node, this.table.node);
    this.node = el("div", { class: "split" }, side, main);
  }

  update() {
    const { set, rows } = this.app;
    // The name of a curve with several numbers shows the largest; each of its columns has a name too.
    const kept = Object.entries(set.curves).flatMap(([name, all]) => [name, ...(all.length > 1 ? all.map((index) => [name, ...index].join("_")) : [])]);
    const names = [...new Set([...kept, ...rows.flatMap((row) => (row.state === "training" ? ["loss", row.forecast?.metric ?? "loss"] : []))])];
    const now = state();
    this.y = names.includes(now.y) ? now.y : (["loss", "kl_teacher"].find((name) => names.includes(name)) ?? names[0]);
    this.by = this.app.columns.includes(now.by) ? now.by : now.by === "none" ? "" : (set.axes.find((axis) => this.app.columns.includes(axis)) ?? "");
    this.axes = { x: now.lx !== "0", y: now.ly === "1" };
    this.median = now.mode === "median";
    this.groups = part("group", this.app.cellAxes).filter((name) => this.app.columns.includes(name));
    this.smooth = this.app.data.live ? now.smooth ?? "1" : "1";
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
    const { set, rows } = this.app;
    if (this.rows !== rows) this.shown.clear();
    this.rows = rows;
    const lit = this.app.highlighted();
    const held = [set.key, this.filter, lit.map((row) => row.identity)];
    const changed = (name, ...parts) => {
      const before = this.shown.get(name);
      this.shown.set(name, JSON.stringify([held, parts]));
      return this.shown.get(name) !== before;
    };
    const { sort, page, cols, matrix } = state();
    if (changed("cells", this.groups)) this.cells.update(this.visible, this.groups, lit);
    if (changed("parallel", this.by)) this.parallel.update(this.visible, this.palette, this.by, this.filter, lit);
    if (changed("matrix", this.by, matrix)) this.matrix.update(this.visible, (row) => this.palette.of(row[this.by]), lit);
    if (changed("table", sort, page, cols)) this.table.update(this.visible, lit);
  }

  #controls(names) {
    const all = this.app.columns.filter((name) => this.app.distinct(name).length > 1);
    const group = (name, on) => setState({ group: all.filter((each) => (each === name ? on : this.groups.includes(each))) });
    const groups = [
      el("h2", { text: "All runs" }),
      names.length ? choice("Curve", names.map((name) => [name, curveWords(name)]), this.y, (y) => setState({ y, zoom: null }), "y") : null,
      choice("Colour by", [["none", "nothing"], ...all.map((name) => [name, words(name)])], this.by || "none", (by) => setState({ by }), "by"),
      names.length ? choice("Show", [["all", "every run"], ["median", "median and band of each group"]], this.median ? "median" : "all", (mode) => setState({ mode }), "mode") : null,
      el("details", { "data-key": "groups" }, el("summary", { text: `Group by ${this.groups.length > 4 ? `${this.groups.length} columns` : this.groups.map(words).join(", ") || "nothing"}` }), el("div", { class: "boxes", role: "group", "aria-label": "Group by" }, all.map((name) => tick(words(name), this.groups.includes(name), (on) => group(name, on), `group ${name}`)))),
      names.length && this.app.data.live ? choice("Smoothing", [["1", "none"], ...["5", "15", "45"].map((count) => [count, `mean of ${count} evaluations`])], this.smooth, (smooth) => setState({ smooth: smooth === "1" ? null : smooth }), "smooth") : null,
      names.length ? el(
        "div",
        { class: "row" },
        tick("log steps", this.axes.x, (on) => setState({ lx: on ? null : "0", zoom: null }), "lx"),
        tick("log values", this.axes.y, (on) => setState({ ly: on ? "1" : null, zoom: null }), "ly"),
      ) : null,
      names.length && this.axes.x ? el("p", { class: "quiet", text: "The log scale leaves out step 0." }) : null,
      isZoomed() ? button("Reset zoom", () => setState({ zoom: null })) : null,
      ...filterControls(this.app, this.filter),
    ];
    refill(this.controls, groups.filter(Boolean));
  }

  /** Loads the missing curves, and draws the loaded ones as they arrive. */
  #load() {
    const trains = this.visible.filter((row) => row.state === "training");
    const runs = this.visible.filter((row) => row.state !== "training").map((row) => row.identity);
    const points = runs.length <= 200 ? 400 : runs.length <= 2000 ? 128 : 64; // `Catalog.warm` knows the last ones
    const version = this.app.set.kind === "log" ? this.app.set.version : null; // curves of finished runs stay
    const key = JSON.stringify([this.app.set.key, this.app.set.version, this.y, this.smooth, points, this.filter, this.groups, trains.map((row) => row.steps)]);
    const look = JSON.stringify([this.by, this.median, this.axes, part("zoom", null)]);
    const [same, alike] = [key === this.loading, look === this.look];
    this.look = look;
    if (same && alike) return this.plot.view && this.plot.remark();
    if (same) return this.curves.runs.size && this.#frame();
    this.loading = key;
    this.curves = new Curves(this.visible, this.groups);
    this.curves.add(trains.map((row) => [row.identity, soFar(this.app, row, this.y)]));
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
    this.app.data.curves(this.app.set.key, this.y, runs, { points, smooth: this.smooth, version }, arrived, ended).then(finish, (error) => this.app.tell(error.message));
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
    return curves.map(({ row, x, y }) => ({ x, y, colour: this.palette.of(row[this.by]), alpha, width: thin(count, 1.2), dash: row.state === "training" ? [5, 3] : null }));
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
    this.plot.heading.textContent = this.median ? `${curveWords(this.y)}: median of each group, and its middle half` : `${curveWords(this.y)} of every run`;
    const several = (this.app.set.curves[this.y] ?? [[]])[0].length > 0;
    this.plot.set({
      x: { label: "step", log: this.axes.x, domain: xs },
      y: { label: several ? `${curveWords(this.y)}, largest of all` : curveWords(this.y), log: this.axes.y, domain: ys },
      curves: cells ? this.#medians(cells) : this.#lines([...this.curves.runs.values()]),
      over: (context, view) => !cells && this.curves.runs.size <= MANY && this.#ends(context, view),
      mark: (context, view) => this.#mark(context, view),
      hover: (left, top, view) => this.#hover(left, top, view),
      pick: () => this.near && setState({ run: this.near }),
      zoom: (range) => setState({ zoom: range }),
      painted: () => this.app.firstPaint(),
      finished: () => this.#below(),
      csv: () => this.#csv(cells),
      summary: `${curveWords(this.y)} against step for ${this.curves.runs.size} runs, coloured by ${this.by || "nothing"}; the mark at the end tells the state. The table below lists the runs.`,
    });
    this.#note();
  }

  #csv(cells) {
    if (cells) {
      const rows = cells.flatMap((cell) => Array.from(cell.x, (x, i) => [...this.groups.map((axis) => cell.row[axis]), cell.runs, x, cell.y[i], cell.low[i], cell.high[i]]));
      return csv([...this.groups, "runs", "step", "median", "quantile_25", "quantile_75"], rows);
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

  /** Marks the ends of curves by the states of their runs. */
  #ends(context, view) {
    for (const { row, x, y } of this.curves.runs.values()) point(context, view.x(x.at(-1)), view.y(y.at(-1)), this.palette.of(row[this.by]), row.state, 3);
  }

  #mark(context, view) {
    const axes = { x: { log: this.axes.x }, y: { log: this.axes.y } };
    for (const run of new Set([state().with, state().run, this.near])) {
      const curve = this.curves.runs.get(run);
      if (!curve) continue;
      line(context, { ...curve, colour: ink("ground"), width: 5.5 }, view, axes);
      line(context, { ...curve, colour: ink("text"), width: 2.4, dash: run === state().with ? [8, 4] : null }, view, axes);
      point(context, view.x(curve.x.at(-1)), view.y(curve.y.at(-1)), ink("text"), curve.row.state, 4.5);
    }
  }

  #note() {
    const { rows, runs } = this.curves;
    const row = rows.get(this.near) ?? rows.get(state().run);
    const hint = this.median
      ? `${runs.size} runs; the band covers the middle half of a group; a finished run keeps its last value`
      : `${runs.size} curves${runs.size < this.visible.length ? ` of ${this.visible.length} runs` : ""}${runs.size <= MANY ? "; ends: ● reached, △ censored, × failed, ○ in training" : ""}; hover to highlight, click to select, drag to zoom, double-click to reset`;
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
    const [row, other] = this.app.highlighted();
    this.chosen.hidden = !row;
    if (!row) return;
    const { run, with: kept } = state();
    refill(
      this.chosen,
      el("h3", { text: other ? "The highlighted run, and the one to compare it with" : "The highlighted run" }),
      el("p", { text: describeRun(this.app, row) }),
      other ? el("p", { text: describeRun(this.app, other) }) : null,
      other ? differences("Differences in the table", [row, other], [row.identity, other.identity], ["axes", "forecast"]) : null,
      labelFields(this.app, row.identity),
      el(
        "div",
        { class: "row" },
        button("Open this run", () => setState({ view: "run" })),
        kept === run ? el("span", { class: "quiet", text: "Now choose the run to compare it with." }) : button("Compare with another run", () => setState({ with: run })),
        button("Clear", () => setState({ run: null, with: null })),
      ),
    );
  }

  destroy() {
    this.loading = null;
    clearTimeout(this.waiting);
    for (const figure of [this.plot, this.parallel.figure, this.matrix.figure]) figure.destroy();
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
