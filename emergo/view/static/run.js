// The view of one run: loss with stages and forecasts, probes, and maps over layers and heads with a slider.
import { ink, shade } from "./colour.js";
import { button, choice, csv, curveWords, el, panel, refill, shown, table, tick, words } from "./dom.js";
import { FONT, Sheet } from "./figure.js";
import { heat } from "./heat.js";
import { HeadClasses } from "./heads.js";
import { labelFields } from "./labels.js";
import { LayerPlots } from "./layers.js";
import { soFar } from "./live.js";
import { CAME, ForecastPart, intervals, lastBy } from "./forecast.js";
import { Plot, band, domain } from "./plot.js";
import { part, setState, state } from "./state.js";
import { config, describeRun, differences, title } from "./words.js";
import { keeps } from "./filter.js";

const TEACHER = "#009e73"; // colour of the teacher's loss
const OTHER = "#d55e00"; // colour of the run to compare with
const CLASSES = 6; // most classes of heads that are marked in the plot of the loss
const FRAME = 60; // milliseconds per evaluation while the slider plays

export class RunView {
  constructor(app) {
    this.app = app;
    const [side, controls] = panel("Choice of the run");
    this.controls = controls;
    this.loss = new Plot("Loss", { name: "loss", height: 320 });
    this.stages = el("section", { "aria-label": "Stages" });
    this.probes = el("div", { class: "pair" });
    this.over = new Sheet("Over training", { name: "attention-over-training", height: 160 });
    this.now = new Sheet("At this step", { name: "attention-at-step", height: 160 });
    this.slider = el("section", { class: "slider", "aria-label": "Step of training" });
    this.forecast = new ForecastPart();
    this.heads = new HeadClasses();
    this.layers = new LayerPlots();
    this.maps = el("section", { class: "maps", "aria-label": "Layers and heads" }, el("h3", { text: "Layers and heads" }), el("div", { class: "pair" }, this.over.node, this.now.node));
    this.about = el("section", {});
    this.left = el("p", { class: "quiet" });
    this.main = el("div", { class: "main" }, this.about, this.loss.node, this.slider, this.forecast.node, this.stages, this.heads.node, this.maps, this.layers.node, this.probes);
    this.node = el("div", { class: "split" }, side, this.main);
    this.small = [];
  }

  async update() {
    const { set, rows, data } = this.app;
    const filter = part("filter", {});
    const visible = rows.filter((row) => keeps(filter, row));
    const first = (runs) => runs.find((row) => row.state !== "failed") ?? runs[0];
    this.row = this.app.byRun.get(state().run) ?? first(visible) ?? first(rows);
    this.other = this.app.byRun.get(state().with);
    if (this.other === this.row || this.other?.state === "training") this.other = null;
    this.log = { x: state().lx !== "0", y: state().ly === "1" };
    this.#controls(visible.length ? visible : rows);
    this.main.hidden = !this.row;
    if (!this.row) return;
    if (this.row.state === "training") return this.#training();
    const learned = this.#learned();
    const run = JSON.stringify([set.key, this.row.identity, learned]);
    const key = `${run}\n${set.version}\n${this.other?.identity}`;
    if (key !== this.read) {
      this.read = key;
      if (run !== this.open) [this.found, this.told] = [null, null]; // of a log that grows, the last ones are shown meanwhile
      this.open = run;
      try {
        const found = await Promise.all([this.row, this.other].filter(Boolean).map((row) => data.run(set.key, row.identity)));
        if (key !== this.read) return;
        [this.detail, this.second] = found;
      } catch (error) {
        return this.app.tell(error.message);
      }
      data.stages(set.key, this.row.identity).then((found) => {
        if (key !== this.read) return;
        this.found = found;
        this.#stages();
        this.#loss();
      }, () => {});
      data.forecast(set.key, this.row.identity, learned).then((told) => {
        if (key !== this.read) return;
        this.told = told;
        this.#stages();
        this.#moved();
      }, () => {});
    }
    if (!this.detail) return;
    this.#about();
    this.#moved();
    this.#stages();
    this.#maps();
    this.#classes();
    this.#probes();
    this.layers.node.hidden = !this.#isLog();
    if (this.#isLog()) this.layers.update(set.curves, this.detail.maps, this.detail.steps, this.log);
    this.app.firstPaint();
  }

  #about() {
    const { constants } = this.app;
    const configs = [[this.detail, this.row], [this.second, this.other]].map(([detail, row]) => (Object.keys(detail?.config ?? {}).length ? detail.config : { ...constants, ...row }));
    const outcomes = [this.row, this.other].map((row) => ({ seed: row?.seed, state: row?.state, plateau: row?.plateau, steps: row?.steps }));
    const compared = this.other && this.second ? [
      el("p", { text: `Compared with ${describeRun(this.app, this.other)}` }),
      differences("Differences of config and outcome", configs.map((each, i) => ({ ...each, ...outcomes[i] })), [this.row.identity, this.other.identity]),
    ] : [];
    const heading = el("h2", { text: `Run ${this.row.identity}` });
    refill(this.about, heading, el("p", { text: describeRun(this.app, this.row) }), ...compared, labelFields(this.app, this.row.identity), config(configs[0]));
  }

  #isLog() {
    return this.app.set.kind === "log";
  }

  /** Returns the metrics of a log. */
  #metrics() {
    const { curves } = this.app.set;
    return Object.keys(curves).filter((name) => curves[name][0].length === 0);
  }

  #metric() {
    const names = this.#metrics();
    return [state().metric, this.app.set.learned?.metric, "loss"].find((name) => names.includes(name)) ?? names[0];
  }

  /** Returns what counts as learned in a log: as chosen on the page, or as given on the command line. */
  #learned() {
    const metric = this.#isLog() ? this.#metric() : null;
    if (!metric) return {};
    const { below, above } = state();
    if (below !== undefined) return { metric, below };
    if (above !== undefined) return { metric, above };
    const given = this.app.set.learned ?? {};
    return given.metric === metric ? Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null)) : { metric };
  }

  #learnedControls() {
    const now = this.#learned();
    const side = now.above === undefined ? "below" : "above";
    const change = (which, text) => setState({ below: null, above: null, [which]: Number.isFinite(Number.parseFloat(text)) ? String(Number.parseFloat(text)) : null });
    const field = el("input", { type: "text", inputmode: "decimal", id: "learned", "data-key": "learned", placeholder: "no value", value: String(now[side] ?? ""), onchange: (event) => change(side, event.target.value) });
    const metrics = this.#metrics().map((name) => [name, curveWords(name)]);
    return [
      choice("Metric", metrics, this.#metric(), (metric) => setState({ metric, below: null, above: null }), "metric"),
      el("div", { class: "row" }, choice("Learned when", [["below", "below"], ["above", "above"]], side, (which) => change(which, field.value), "side"), el("div", { class: "field" }, el("label", { for: "learned", text: "value" }), field)),
    ];
  }

  /** Updates the parts that depend on the slider and on forecasts. */
  #moved() {
    const { steps } = this.detail;
    this.slider.hidden = !this.#slides();
    if (this.#slides()) this.#slide(steps, this.#at());
    this.forecast.lookBack(this.told, steps[this.#at()] ?? 0, this.log.x);
    this.#loss();
  }

  #slides() {
    return this.detail.steps.length > 1 && (Object.keys(this.detail.maps).length > 0 || this.told?.moments.length > 0);
  }

  /** Shows a run in training: the last message of its process. */
  #training() {
    const { forecast } = this.row;
    this.read = null;
    this.detail = null;
    this.#leftOut();
    for (const node of [this.slider, this.stages, this.heads.node, this.maps, this.layers.node, this.probes]) node.hidden = true;
    refill(this.about, el("h2", { text: `Run ${this.row.identity}` }), el("p", { text: describeRun(this.app, this.row) }));
    this.forecast.training(forecast);
    const metric = forecast?.metric ?? "loss";
    const [x, y] = soFar(this.app, this.row, metric);
    this.loss.node.hidden = !x.length;
    if (!x.length) return this.app.firstPaint();
    const comes = forecast?.state === "forecast";
    const ahead = comes ? (forecast.intervals["80%"]?.[1] ?? forecast.step * 2) : 0;
    const [xs, ys] = [domain([...x, ahead], this.log.x, 0.02), domain([...y, ...(forecast ? [forecast.threshold] : [])], this.log.y)];
    const threshold = forecast ? [{ x: xs, y: [forecast.threshold, forecast.threshold], colour: ink("muted"), dash: [2, 4] }] : [];
    this.loss.set({
      x: { label: "step", log: this.log.x, domain: xs },
      y: { label: curveWords(metric), log: this.log.y, domain: ys },
      curves: [...threshold, { x, y, colour: ink("accent"), width: 1.8 }],
      under: (context, view) => comes && intervals(context, view, forecast, ys),
      over: (context, view) => comes && verticalLine(context, view, forecast.step, ink("forecast")),
      mark: (context, view) => comes && lineLabel(context, view, forecast.step, "forecast"),
      csv: () => csv(["step", metric], x.map((each, i) => [each, y[i]])),
      summary: `${curveWords(metric)} of the run so far, to step ${shown(x.at(-1))}: ${shown(y.at(-1))}. Forecast: ${forecast?.words ?? "none"}`,
    });
    this.loss.heading.textContent = curveWords(metric);
    this.loss.setLegend(null, []);
    this.loss.note.textContent = `as of step ${shown(x.at(-1))}; ${forecast ? "dotted: threshold; " : ""}the whole curve appears when the run has finished`;
    this.app.firstPaint();
  }

  #controls(runs) {
    const at = runs.indexOf(this.row);
    const go = (step) => setState({ run: runs[(at + step + runs.length) % runs.length]?.identity });
    this.step = go;
    const near = runs.length > 400 ? runs.slice(Math.max(0, at - 200), at + 200) : runs;
    const name = (row) => [row.identity, this.#isLog() ? title(row) : [...(row.name ? [row.name] : []), ...(["training", "failed"].includes(row.state) ? [row.state] : []), ...this.app.cellAxes.slice(0, 4).map((axis) => `${words(axis)} ${shown(row[axis])}`), `seed ${shown(row.seed)}`].join(", ")];
    const maps = this.#families();
    refill(
      this.controls,
      el("h2", { text: "One run" }),
      choice("Run", near.map(name), this.row?.identity, (run) => setState({ run }), "run"),
      choice("Compare with", [["", "no other run"], ...(this.other && !near.includes(this.other) ? [this.other] : []).concat(near).filter((row) => row !== this.row && row.state !== "training").map(name)], this.other?.identity ?? "", (other) => setState({ with: other }), "with"),
      el("div", { class: "row" }, button("Previous", () => go(-1), { class: "small" }), button("Next", () => go(1), { class: "small" })),
      el("div", { class: "row" }, tick("log steps", this.log.x, (on) => setState({ lx: on ? null : "0" }), "lx"), tick("log values", this.log.y, (on) => setState({ ly: on ? "1" : null }), "ly")),
      this.left,
      ...(this.#isLog() && this.app.data.live ? this.#learnedControls() : []),
      maps.length ? choice("Layers and heads", maps.map((each) => [each, curveWords(each)]), this.#family(), (family) => setState({ family }), "family") : null,
      el("p", { class: "quiet", text: `${Math.max(at, 0) + 1} of ${runs.length} runs${runs.length < this.app.rows.length ? " that pass the filter" : ""}` }),
    );
  }

  #families() {
    const least = this.#isLog() ? 2 : 1; // numbers per layer of a log are drawn as curves
    return Object.entries(this.app.set.curves).filter(([, indices]) => indices[0].length >= least).map(([name]) => name);
  }

  #family() {
    const names = this.#families();
    return names.includes(state().family) ? state().family : (["attention", "attention_by_lag", "induction_head", "largest"].find((name) => names.includes(name)) ?? names[0]);
  }

  #loss() {
    const names = this.#isLog() ? [this.#metric()].filter((name) => name in this.detail.curves) : Object.keys(this.detail.curves).filter((name) => name === "loss" || name === "train_loss" || name === "teacher_loss");
    const shownNames = names.length ? names : Object.keys(this.detail.curves).slice(0, 1);
    const order = ["loss", "train_loss", "teacher_loss"];
    shownNames.sort((a, b) => order.indexOf(b) - order.indexOf(a));
    this.loss.node.hidden = !shownNames.length;
    if (!shownNames.length) return;
    const colour = (name) => ({ train_loss: ink("faint"), teacher_loss: TEACHER })[name] ?? ink("accent");
    const drops = this.found?.curve === "loss" || this.found?.curve === "kl_teacher" ? this.found.drops : [];
    const { plateau, plateau_low: low, plateau_high: high, state: ended } = this.row;
    const told = this.told?.moments.length ? lastBy(this.told.moments, this.detail.steps[this.#at()] ?? Infinity) : null;
    const entered = this.detail.classes.filter(({ low }) => low !== null).slice(0, CLASSES);
    this.#plot(this.loss, shownNames, colour, "loss", {
      under: (context, view, top) => {
        if (told?.state === "forecast") intervals(context, view, told, top);
        if (ended === "reached" && low > 0 && high > low) band(context, [low, high], [top[0], top[0]], [top[1], top[1]], CAME, view, 0.3);
      },
      over: (context, view) => {
        if (plateau > 0) verticalLine(context, view, plateau, CAME);
        if (told?.state === "forecast") verticalLine(context, view, told.step, ink("forecast"));
        for (const { onset } of drops) if (onset > 0) verticalLine(context, view, onset, ink("muted"));
        for (const { step } of entered) verticalLine(context, view, step, ink("faint"), [1, 3]);
      },
      mark: (context, view) => {
        if (plateau > 0) lineLabel(context, view, plateau, ended === "censored" ? "censored here" : "plateau ends");
        if (told?.state === "forecast") lineLabel(context, view, told.step, "forecast", view.height - 10);
        entered.forEach((each, i) => lineLabel(context, view, each.step, `${each.layer}.${each.head} ${each.class.replaceAll("_", "-")}`, view.height - 24 - 14 * i));
        drops.forEach(({ onset }, i) => onset > 0 && lineLabel(context, view, onset, `drop ${i + 1} begins`, 26 + 14 * (i % 3)));
      },
    });
    this.loss.heading.textContent = this.#isLog() ? curveWords(shownNames[0]) : shownNames.length > 1 || names.length ? "Loss" : curveWords(shownNames[0]);
    const second = this.other ? [{ value: `${this.other.name || this.other.identity} (dashed)`, colour: OTHER }] : [];
    this.loss.setLegend("curve", [...[...shownNames].reverse().map((name) => ({ value: curveWords(name), colour: colour(name) })), ...second]);
    this.loss.note.textContent = `${this.detail.evaluations} evaluations${this.#plateauEnds("; ")}`;
    this.#leftOut();
  }

  /** Describes the end of the plateau; returns an empty text if the run did not reach its threshold. */
  #plateauEnds(before) {
    const { plateau, state: ended } = this.row;
    if (ended !== "reached" || !plateau) return "";
    const threshold = this.told?.threshold;
    const what = Number.isFinite(threshold) ? `the ${curveWords(this.told.metric)} crosses ${shown(threshold)}` : "the run crosses its threshold";
    return `${before}the plateau ends at step ${shown(Math.round(plateau))}, where ${what}`;
  }

  /** Explains which value a logarithmic axis leaves out. */
  #leftOut() {
    const [x, y] = this.detail?.curves.loss ?? [[], []];
    const first = x[0] === 0 && Number.isFinite(y[0]) ? `, where the loss is ${shown(y[0])}` : "";
    this.left.textContent = this.log.x ? `The log scale leaves out step 0${first}.` : "";
    this.left.hidden = !this.log.x;
  }

  /** Draws the classes of the heads at the step of the slider. */
  #classes() {
    const scored = Object.entries(this.app.set.curves).filter(([name, indices]) => name.endsWith("_head") && indices[0].length === 2);
    this.heads.update(this.detail.classes, scored.flatMap(([, indices]) => indices), this.detail.steps[this.#at()]);
  }

  #plot(plot, names, colour, label, extra = {}) {
    const style = (name) => ({ colour: colour(name), width: name === "train_loss" ? 1 : 1.8 });
    const curve = ([x, y], look) => ({ x, y: y.map((value) => value ?? NaN), ...look });
    const shared = names.filter((name) => name !== "train_loss" && this.second?.curves[name]);
    const curves = [
      ...shared.map((name) => curve(this.second.curves[name], { colour: OTHER, width: 1.8, dash: [6, 4] })),
      ...names.map((name) => curve(this.detail.curves[name], style(name))),
    ];
    const steps = curves.flatMap((curve) => curve.x);
    const xs = domain(steps, this.log.x, 0.01);
    const ys = domain(curves.flatMap((curve) => curve.y.filter((_, i) => !this.log.x || curve.x[i] > 0)), this.log.y);
    plot.set({
      x: { label: "step", log: this.log.x, domain: xs },
      y: { label, log: this.log.y, domain: ys },
      curves,
      under: (context, view) => extra.under?.(context, view, ys),
      over: extra.over,
      mark: (context, view) => {
        if (this.#slides()) verticalLine(context, view, this.detail.steps[this.#at()], ink("text"), []);
        extra.mark?.(context, view);
      },
      csv: () => csv(["step", ...names], merged(names.map((name) => this.detail.curves[name]))),
      summary: `${label} of the run against step: from ${shown(curves.at(-1)?.y[0])} to ${shown(curves.at(-1)?.y.at(-1))} at step ${shown(curves.at(-1)?.x.at(-1))}${shared.length ? `; dashed, the run ${this.other.identity}` : ""}`,
    });
  }

  #stages() {
    this.stages.hidden = false;
    if (!this.found) return refill(this.stages);
    const { curve, drops, why } = this.found;
    if (!drops.length) return refill(this.stages, el("p", { class: "quiet", text: why ? `Stages: ${why}.` : "No stages: the curve does not decrease." }));
    const rows = drops.map((drop, i) => [i + 1, Math.round(drop.onset), Math.round(drop.steepest), shown(drop.level), shown(drop.after)]);
    const heads = ["drop", "begins (step)", "steepest (step)", "level before", "level after"];
    const begins = `On logarithmic axes, a drop begins where its steepest tangent meets the plateau before it${this.#plateauEnds("; by the threshold of the run, ")}`;
    const note = el("p", { class: "quiet", text: `${begins}. The first level is the first evaluation of the ${curveWords(curve)}.` });
    refill(this.stages, el("h3", { text: "Stages" }), table(`Drops of the ${curveWords(curve)}, with the levels before and after`, heads, rows), note);
  }

  /** Returns the index of the evaluation that the slider shows. */
  #at() {
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
    const at = this.#at();
    const colour = (value) => (Number.isFinite(value) ? shade((value - scale[0]) / (scale[1] - scale[0])) : ink("grid"));
    const rowsOf = { over: indices.map((index) => label(index)), now: null };
    const height = Math.max(120, Math.min(520, 44 + rowsOf.over.length * (rowsOf.over.length > 24 ? 11 : 20)));
    this.over.heading.textContent = `${curveWords(family)}: over training`;
    this.over.set({
      height,
      draw: (context, width, tall) => heat(context, width, tall, { values, rows: rowsOf.over, columns: steps.map((step) => shown(step)), colour, below: "step (one column per evaluation)", mark: at }),
      csv: () => csv(["step", ...indices.map((index) => [family, ...index].join("_"))], steps.map((step, i) => [step, ...values.map((each) => each[i])])),
      summary: `${curveWords(family)} of ${indices.length} heads over ${steps.length} evaluations; at the end between ${shown(Math.min(...values.map((each) => each.at(-1))))} and ${shown(Math.max(...values.map((each) => each.at(-1))))}`,
    });
    this.#atMoment(family, indices, values, at, colour, steps[at]);
    const every = this.detail.evaluations > steps.length ? `, ${steps.length} of ${this.detail.evaluations} evaluations` : "";
    const ends = [scale[0], scale[1]].map((value) => ({ value, colour: colour(value) }));
    this.over.setLegend("value", [ends[0], { value: (scale[0] + scale[1]) / 2, colour: colour((scale[0] + scale[1]) / 2) }, ends[1]]);
    this.over.note.textContent = `rows: ${indices[0].length === 1 ? "numbers" : indices[0].length === 2 ? "layer.head" : "layer.head, lag"}${every}`;
  }

  /** Draws a grid of the last index against the others: heads of layers, or lags of heads. */
  #atMoment(family, indices, values, at, colour, step) {
    const rows = [...new Set(indices.map((index) => label(index.slice(0, -1)) || "–"))];
    const columns = [...new Set(indices.map((index) => index.at(-1)))].sort((a, b) => a - b);
    const cells = rows.map((row) => columns.map((column) => {
      const i = indices.findIndex((index) => (label(index.slice(0, -1)) || "–") === row && index.at(-1) === column);
      return i < 0 ? NaN : values[i][at];
    }));
    const what = indices[0].length === 3 ? ["layer.head", "lag"] : indices[0].length === 2 ? ["layer", "head"] : ["", "number"];
    this.now.heading.textContent = `${curveWords(family)}: at step ${shown(step)}`;
    this.now.set({
      height: this.over.height,
      draw: (context, width, tall) => heat(context, width, tall, { values: cells, rows, columns: columns.map(String), colour, below: what[1], write: true }),
      csv: () => csv([what[0] || "row", ...columns.map((column) => `${what[1]}_${column}`)], rows.map((row, i) => [row, ...cells[i]])),
      summary: `${curveWords(family)} at step ${step}: ${rows.map((row, i) => `${what[0]} ${row}: ${cells[i].map(shown).join(", ")}`).join("; ").slice(0, 600)}`,
    });
    this.now.note.textContent = what[0] ? `rows: ${what[0]}; columns: ${what[1]}` : "";
  }

  #slide(steps, at) {
    if (this.range?.max !== String(steps.length - 1) || !this.slider.contains(this.range)) {
      this.range = el("input", { type: "range", min: "0", max: String(steps.length - 1), step: "1", "aria-label": "Step of training", oninput: (event) => setState({ at: String(this.detail.steps[Number(event.target.value)]) }) });
      this.at = el("output", {});
      this.player = button("Play", () => this.#play());
      refill(this.slider, el("h3", { text: "Step of training" }), el("div", { class: "row" }, this.player, this.range, this.at));
    }
    this.range.value = at;
    const told = this.told?.moments.length ? `, forecast: ${lastBy(this.told.moments, steps[at]).words}` : "";
    this.range.setAttribute("aria-valuetext", `step ${steps[at]}${told}`);
    this.at.textContent = `step ${shown(steps[at])}`;
  }

  #play() {
    if (this.timer) return this.#stop();
    this.player.textContent = "Stop";
    let i = this.#at();
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
    this.probes.hidden = false;
    const above = this.#isLog() ? [this.#metric()] : ["loss", "train_loss", "teacher_loss"];
    const names = Object.keys(this.detail.curves).filter((name) => !above.includes(name));
    if (this.small.length !== names.length) {
      this.small.forEach((plot) => plot.destroy());
      this.small = names.map((name) => new Plot(curveWords(name), { name, height: 220 }));
      this.probes.replaceChildren(...this.small.map((plot) => plot.node));
    }
    this.small.forEach((plot, i) => {
      plot.name = names[i];
      plot.heading.textContent = curveWords(names[i]);
      this.#plot(plot, [names[i]], () => ink("accent"), curveWords(names[i]));
    });
  }

  destroy() {
    clearInterval(this.timer);
    this.read = null;
    for (const figure of [this.loss, this.forecast, this.heads, this.layers, this.over, this.now, ...this.small]) figure.destroy();
  }
}

const label = (index) => (index.length > 2 ? `${index.slice(0, -1).join(".")}, ${index.at(-1)}` : index.join("."));

/** Merges curves with different steps into rows; missing values are empty. */
function merged(curves) {
  const steps = [...new Set(curves.flatMap(([x]) => x))].sort((a, b) => a - b);
  const maps = curves.map(([x, y]) => new Map(x.map((step, i) => [step, y[i]])));
  return steps.map((step) => [step, ...maps.map((map) => map.get(step) ?? null)]);
}

function verticalLine(context, view, x, colour, dash = [3, 3]) {
  const px = view.x(x);
  if (!(px >= 0 && px <= view.width)) return;
  Object.assign(context, { strokeStyle: colour, lineWidth: 1.2, globalAlpha: 0.9 });
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(px, 0);
  context.lineTo(px, view.height);
  context.stroke();
  context.setLineDash([]);
}

/** Labels a vertical line. The text has an outline, so that it is readable on top of curves. */
function lineLabel(context, view, x, text, y = 12) {
  const px = view.x(x);
  if (!(px >= 0 && px <= view.width)) return;
  const right = px > view.width - 90;
  Object.assign(context, { fillStyle: ink("muted"), font: FONT, textAlign: right ? "right" : "left", textBaseline: "middle" });
  Object.assign(context, { strokeStyle: ink("ground"), lineWidth: 4, lineJoin: "round", globalAlpha: 1 });
  context.strokeText(text, px + (right ? -4 : 4), y);
  context.fillText(text, px + (right ? -4 : 4), y);
}
