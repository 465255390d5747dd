// One run: its loss with the stages, its probes, and attention per layer and head over training, with a slider.
import { ink, shade } from "./colour.js";
import { button, choice, csv, el, refill, shown, table, tick, words } from "./dom.js";
import { FONT, Sheet } from "./figure.js";
import { Plot, band, domain, line } from "./plot.js";
import { part, setState, state } from "./state.js";
import { config, describeRun } from "./words.js";
import { keeps } from "./filter.js";

const [ENDS, TEACHER] = ["#e69f00", "#009e73"]; // the end of the plateau, and the loss of the teacher
const FRAME = 60; // milliseconds of a moment when the slider plays

export class RunView {
  constructor(app) {
    this.app = app;
    this.controls = el("div", { class: "controls", role: "group", "aria-label": "Which run" });
    this.loss = new Plot("Loss", { name: "loss", height: 320 });
    this.stages = el("section", { "aria-label": "Stages" });
    this.probes = el("div", { class: "pair" });
    this.over = new Sheet("Over training", { name: "attention-over-training", height: 160 });
    this.now = new Sheet("At this step", { name: "attention-at-step", height: 160 });
    this.slider = el("div", { class: "slider" });
    this.maps = el("section", { class: "maps", "aria-label": "Layers and heads" }, this.slider, el("div", { class: "pair" }, this.over.node, this.now.node));
    this.about = el("section", {});
    this.main = el("div", { class: "main" }, this.about, this.loss.node, this.stages, this.maps, this.probes);
    this.node = el("div", { class: "split" }, this.controls, this.main);
    this.small = [];
  }

  async update() {
    const { set, rows, data } = this.app;
    const filter = part("filter", {});
    const visible = rows.filter((row) => keeps(filter, row));
    this.row = rows.find((row) => row.identity === state().run) ?? visible[0] ?? rows[0];
    this.log = { x: state().lx !== "0", y: state().ly === "1" };
    this.#controls(visible.length ? visible : rows);
    this.main.hidden = !this.row;
    if (!this.row) return;
    const key = `${set.key}\n${this.row.identity}\n${set.version}`;
    if (key !== this.read) {
      this.read = key;
      this.found = null;
      try {
        const detail = await data.run(set.key, this.row.identity);
        if (key !== this.read) return;
        this.detail = detail;
      } catch (error) {
        return this.app.tell(error.message);
      }
      data.stages(set.key, this.row.identity).then((found) => {
        if (key !== this.read) return;
        this.found = found;
        this.#stages();
        this.#loss();
      }, () => {});
    }
    if (!this.detail) return;
    refill(this.about, el("h2", { text: `Run ${this.row.identity}` }), el("p", { text: describeRun(this.app, this.row) }), config(this.app, this.row, this.detail.config));
    this.#loss();
    this.#stages();
    this.#maps();
    this.#probes();
    this.app.firstPaint();
  }

  #controls(runs) {
    const at = runs.indexOf(this.row);
    const go = (step) => setState({ run: runs[(at + step + runs.length) % runs.length]?.identity });
    this.step = go;
    const near = runs.length > 400 ? runs.slice(Math.max(0, at - 200), at + 200) : runs;
    const name = (row) => [row.identity, [...this.app.cellAxes.slice(0, 4).map((axis) => `${words(axis)} ${shown(row[axis])}`), `seed ${shown(row.seed)}`].join(", ")];
    const maps = this.#families();
    refill(
      this.controls,
      el("h2", { text: "One run" }),
      choice("Run", near.map(name), this.row?.identity, (run) => setState({ run }), "run"),
      el("div", { class: "row" }, button("Previous", () => go(-1), { class: "small" }), button("Next", () => go(1), { class: "small" })),
      el("div", { class: "row" }, tick("log steps", this.log.x, (on) => setState({ lx: on ? null : "0" }), "lx"), tick("log values", this.log.y, (on) => setState({ ly: on ? "1" : null }), "ly")),
      maps.length ? choice("Layers and heads", maps.map((each) => [each, words(each)]), this.#family(), (family) => setState({ family }), "family") : null,
      el("p", { class: "quiet", text: `${Math.max(at, 0) + 1} of ${runs.length} runs${runs.length < this.app.rows.length ? " that pass the filter" : ""}` }),
    );
  }

  #families() {
    return Object.entries(this.app.set.curves).filter(([, indices]) => indices[0].length > 0).map(([name]) => name);
  }

  #family() {
    const names = this.#families();
    return names.includes(state().family) ? state().family : (["attention", "attention_by_lag"].find((name) => names.includes(name)) ?? names[0]);
  }

  #loss() {
    const names = Object.keys(this.detail.curves).filter((name) => name === "loss" || name === "train_loss" || name === "teacher_loss");
    const shownNames = names.length ? names : Object.keys(this.detail.curves).slice(0, 1);
    const order = ["loss", "train_loss", "teacher_loss"];
    shownNames.sort((a, b) => order.indexOf(b) - order.indexOf(a));
    this.loss.node.hidden = !shownNames.length;
    if (!shownNames.length) return;
    const colour = (name) => ({ train_loss: ink("faint"), teacher_loss: TEACHER })[name] ?? ink("accent");
    const drops = this.found?.curve === "loss" || this.found?.curve === "kl_teacher" ? this.found.drops : [];
    const { plateau, plateau_low: low, plateau_high: high, state: ended } = this.row;
    this.#plot(this.loss, shownNames, colour, "loss", {
      under: (context, view, top) => {
        if (ended === "reached" && low > 0 && high > low) band(context, [low, high], [top[0], top[0]], [top[1], top[1]], ENDS, view, 0.3);
      },
      over: (context, view) => {
        if (Number.isFinite(plateau) && plateau > 0) upright(context, view, plateau, ended === "censored" ? "censored here" : "plateau ends", ENDS);
        drops.forEach((drop, i) => drop.onset > 0 && upright(context, view, drop.onset, `drop ${i + 1}`, ink("muted"), 26 + 14 * (i % 3)));
      },
    });
    this.loss.heading.textContent = shownNames.length > 1 || names.length ? "Loss" : words(shownNames[0]);
    this.loss.setLegend("curve", [...shownNames].reverse().map((name) => ({ value: words(name), colour: colour(name) })));
    this.loss.note.textContent = `${this.detail.evaluations} evaluations${ended === "reached" && plateau ? `; the plateau ends at step ${shown(Math.round(plateau))}` : ""}`;
  }

  #plot(plot, names, colour, label, extra = {}) {
    const curves = names.map((name) => ({ x: this.detail.curves[name][0], y: this.detail.curves[name][1].map((value) => value ?? NaN), colour: colour(name), width: name === "train_loss" ? 1 : 1.8 }));
    const steps = curves.flatMap((curve) => curve.x);
    const xs = domain(steps, this.log.x, 0.01);
    const ys = domain(curves.flatMap((curve) => curve.y.filter((_, i) => !this.log.x || curve.x[i] > 0)), this.log.y);
    plot.set({
      x: { label: "step", log: this.log.x, domain: xs },
      y: { label, log: this.log.y, domain: ys },
      curves,
      under: (context, view) => extra.under?.(context, view, ys),
      over: extra.over,
      mark: (context, view) => this.detail.steps.length && this.#families().length && upright(context, view, this.detail.steps[this.#moment()], null, ink("text")),
      csv: () => csv(["step", ...names], merged(names.map((name) => this.detail.curves[name]))),
      summary: `${label} of the run against step: from ${shown(curves[0]?.y[0])} to ${shown(curves[0]?.y.at(-1))} at step ${shown(curves[0]?.x.at(-1))}`,
    });
  }

  #stages() {
    if (!this.found) return refill(this.stages);
    const { curve, drops, why } = this.found;
    if (!drops.length) return refill(this.stages, el("p", { class: "quiet", text: why ? `Stages: ${why}.` : "No stages: the curve does not fall." }));
    const rows = drops.map((drop, i) => [i + 1, Math.round(drop.onset), Math.round(drop.steepest), shown(drop.level), shown(drop.after)]);
    refill(this.stages, el("h3", { text: "Stages" }), table(`Drops of the ${words(curve)}, and the plateaus between`, ["drop", "plateau ends (step)", "steepest (step)", "level before", "level after"], rows));
  }

  #moment() {
    const steps = this.detail.steps;
    const wanted = Number(state().at ?? Infinity);
    let best = steps.length - 1;
    for (let i = 0; i < steps.length; i += 1) if (Math.abs(steps[i] - wanted) < Math.abs(steps[best] - wanted)) best = i;
    return Math.max(0, best);
  }

  #maps() {
    const family = this.#family();
    const indices = family ? this.app.set.curves[family].filter((index) => this.detail.maps[[family, ...index].join("_")]) : [];
    this.maps.hidden = !indices.length;
    if (!indices.length) return;
    const { steps } = this.detail;
    const values = indices.map((index) => this.detail.maps[[family, ...index].join("_")]);
    const finite = values.flat().filter(Number.isFinite);
    const most = finite.reduce((a, b) => Math.max(a, b), 0);
    const scale = [Math.min(0, finite.reduce((a, b) => Math.min(a, b), 0)), most <= 1 && !family.includes("entropy") && !family.includes("kl") ? 1 : most || 1];
    const at = this.#moment();
    const colour = (value) => (Number.isFinite(value) ? shade((value - scale[0]) / (scale[1] - scale[0])) : ink("grid"));
    this.#slide(steps, at);
    const rowsOf = { over: indices.map((index) => label(index)), now: null };
    const height = Math.max(120, Math.min(520, 44 + rowsOf.over.length * (rowsOf.over.length > 24 ? 11 : 20)));
    this.over.heading.textContent = `${words(family)}: over training`;
    this.over.set({
      height,
      draw: (context, width, tall) => heat(context, width, tall, { values, rows: rowsOf.over, columns: steps.map((step) => shown(step)), colour, below: "step (one column per evaluation)", mark: at }),
      csv: () => csv(["step", ...indices.map((index) => [family, ...index].join("_"))], steps.map((step, i) => [step, ...values.map((each) => each[i])])),
      summary: `${words(family)} of ${indices.length} heads over ${steps.length} evaluations; at the end between ${shown(Math.min(...values.map((each) => each.at(-1))))} and ${shown(Math.max(...values.map((each) => each.at(-1))))}`,
    });
    this.#atMoment(family, indices, values, at, colour, steps[at]);
    const every = this.detail.evaluations > steps.length ? `, ${steps.length} of ${this.detail.evaluations} evaluations` : "";
    const ends = [scale[0], scale[1]].map((value) => ({ value, colour: colour(value) }));
    this.over.setLegend("value", [ends[0], { value: (scale[0] + scale[1]) / 2, colour: colour((scale[0] + scale[1]) / 2) }, ends[1]]);
    this.over.note.textContent = `rows: ${indices[0].length === 1 ? "numbers" : indices[0].length === 2 ? "layer.head" : "layer.head, lag"}${every}`;
  }

  /** A grid of the last index against the others: heads of layers, or lags of heads. */
  #atMoment(family, indices, values, at, colour, step) {
    const rows = [...new Set(indices.map((index) => label(index.slice(0, -1)) || "–"))];
    const columns = [...new Set(indices.map((index) => index.at(-1)))].sort((a, b) => a - b);
    const cells = rows.map((row) => columns.map((column) => {
      const i = indices.findIndex((index) => (label(index.slice(0, -1)) || "–") === row && index.at(-1) === column);
      return i < 0 ? NaN : values[i][at];
    }));
    const what = indices[0].length === 3 ? ["layer.head", "lag"] : indices[0].length === 2 ? ["layer", "head"] : ["", "number"];
    this.now.heading.textContent = `${words(family)}: at step ${shown(step)}`;
    this.now.set({
      height: this.over.height,
      draw: (context, width, tall) => heat(context, width, tall, { values: cells, rows, columns: columns.map(String), colour, below: what[1], write: true }),
      csv: () => csv([what[0] || "row", ...columns.map((column) => `${what[1]}_${column}`)], rows.map((row, i) => [row, ...cells[i]])),
      summary: `${words(family)} at step ${step}: ${rows.map((row, i) => `${what[0]} ${row}: ${cells[i].map(shown).join(", ")}`).join("; ").slice(0, 600)}`,
    });
    this.now.note.textContent = what[0] ? `rows: ${what[0]}; columns: ${what[1]}` : "";
  }

  #slide(steps, at) {
    if (this.range?.max !== String(steps.length - 1) || !this.slider.contains(this.range)) {
      this.range = el("input", { type: "range", min: "0", max: String(steps.length - 1), step: "1", "aria-label": "Step of training", oninput: (event) => setState({ at: String(steps[Number(event.target.value)]) }) });
      this.at = el("output", {});
      this.player = button("Play", () => this.#play());
      refill(this.slider, el("h3", { text: "Layers and heads" }), el("div", { class: "row" }, this.player, this.range, this.at));
    }
    this.range.value = at;
    this.range.setAttribute("aria-valuetext", `step ${steps[at]}`);
    this.at.textContent = `step ${shown(steps[at])}`;
  }

  #play() {
    if (this.timer) return this.#stop();
    this.player.textContent = "Stop";
    let i = this.#moment();
    if (i >= this.detail.steps.length - 1) i = -1;
    this.timer = setInterval(() => {
      i += 1;
      if (i >= this.detail.steps.length) return this.#stop();
      setState({ at: String(this.detail.steps[i]) });
    }, FRAME);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.player.textContent = "Play";
  }

  #probes() {
    const names = Object.keys(this.detail.curves).filter((name) => !["loss", "train_loss", "teacher_loss"].includes(name));
    if (this.small.length !== names.length) {
      this.small.forEach((plot) => plot.destroy());
      this.small = names.map((name) => new Plot(words(name), { name, height: 220 }));
      this.probes.replaceChildren(...this.small.map((plot) => plot.node));
    }
    this.small.forEach((plot, i) => {
      plot.name = names[i];
      plot.heading.textContent = words(names[i]);
      this.#plot(plot, [names[i]], () => ink("accent"), words(names[i]));
    });
  }

  destroy() {
    clearInterval(this.timer);
    this.read = null;
    for (const figure of [this.loss, this.over, this.now, ...this.small]) figure.destroy();
  }
}

const label = (index) => (index.length > 2 ? `${index.slice(0, -1).join(".")}, ${index.at(-1)}` : index.join("."));

/** Curves with steps of their own as rows; a step that a curve lacks is empty. */
function merged(curves) {
  const steps = [...new Set(curves.flatMap(([x]) => x))].sort((a, b) => a - b);
  const maps = curves.map(([x, y]) => new Map(x.map((step, i) => [step, y[i]])));
  return steps.map((step) => [step, ...maps.map((map) => map.get(step) ?? null)]);
}

function upright(context, view, x, text, colour, y = 12) {
  const px = view.x(x);
  if (!Number.isFinite(px) || px < 0 || px > view.width) return;
  Object.assign(context, { strokeStyle: colour, lineWidth: 1.2, globalAlpha: 0.9 });
  context.setLineDash(text ? [3, 3] : []);
  context.beginPath();
  context.moveTo(px, 0);
  context.lineTo(px, view.height);
  context.stroke();
  context.setLineDash([]);
  if (!text) return;
  const right = px > view.width - 90;
  Object.assign(context, { fillStyle: ink("muted"), font: FONT, textAlign: right ? "right" : "left", textBaseline: "middle" });
  context.fillText(text, px + (right ? -4 : 4), y);
}

/** A map of values: rows from the top, columns from the left. */
function heat(context, width, height, { values, rows, columns, colour, below, mark, write }) {
  const [left, top, bottom] = [64, 6, 38];
  const [w, h] = [(width - left - 8) / Math.max(columns.length, 1), (height - top - bottom) / Math.max(rows.length, 1)];
  values.forEach((row, i) => {
    row.forEach((value, j) => {
      context.fillStyle = colour(value);
      const [x0, x1] = [Math.round(left + j * w), Math.round(left + (j + 1) * w)]; // whole pixels leave no seams
      context.fillRect(x0, Math.round(top + i * h), Math.max(1, x1 - x0 - (write ? 1 : 0)), Math.max(1, Math.round(h) - 1));
      if (write && w > 30 && h > 12 && Number.isFinite(value)) {
        const text = shown(Number(value.toPrecision(2)));
        Object.assign(context, { font: FONT, textAlign: "center", textBaseline: "middle", globalAlpha: 0.55, fillStyle: "#000" });
        context.fillRect(left + (j + 0.5) * w - 19, top + (i + 0.5) * h - 9, 38, 17);
        Object.assign(context, { globalAlpha: 1, fillStyle: "#fff" });
        context.fillText(text, left + (j + 0.5) * w, top + (i + 0.5) * h);
      }
    });
  });
  Object.assign(context, { fillStyle: ink("muted"), font: h < 12 ? "9px system-ui, sans-serif" : FONT, textAlign: "right", textBaseline: "middle" });
  const every = Math.max(1, Math.ceil(10 / h));
  rows.forEach((row, i) => i % every === 0 && context.fillText(row, left - 6, top + (i + 0.5) * h));
  Object.assign(context, { font: FONT, textAlign: "center" });
  const most = Math.max(1, Math.ceil(columns.length / Math.max(2, Math.floor((width - left) / 64))));
  columns.forEach((column, j) => j % most === 0 && context.fillText(column, left + (j + 0.5) * w, height - bottom + 12));
  context.fillText(below, left + (width - left) / 2, height - 8);
  if (mark === undefined) return;
  Object.assign(context, { strokeStyle: ink("text"), lineWidth: 1.6 });
  context.beginPath();
  context.rect(left + mark * w - 1, top - 2, Math.max(w, 2) + 2, height - top - bottom + 2);
  context.stroke();
}
