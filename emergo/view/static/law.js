// The view of a law: the fit with its interval, residuals, and the published law. The user chooses the terms.
import { colours, ink } from "./colour.js";
import { button, choice, csv, el, panel, refill, shown, table, tick, words } from "./dom.js";
import { filterControls, forServer } from "./filter.js";
import { Plot, band, domain, line, point } from "./plot.js";
import { part, setState, state } from "./state.js";
import { describeRun } from "./words.js";

const FEW = 12; // axes with at most so many values have their labels there

export class LawView {
  constructor(app) {
    this.app = app;
    const [side, controls] = panel("Choice of the law");
    this.controls = controls;
    this.partial = new Plot("The law", { name: "law", height: 380 });
    this.against = new Plot("Measured against the law", { name: "measured", height: 300 });
    this.residuals = new Plot("Residuals", { name: "residuals", height: 300 });
    this.numbers = el("section", { "aria-label": "Numbers of the law" });
    this.figure = el("section", { "aria-label": "The figure" });
    this.plots = el("div", {}, this.partial.node, el("div", { class: "pair" }, this.against.node, this.residuals.node));
    this.message = el("p", { class: "message", role: "status" });
    this.node = el("div", { class: "split" }, side, el("div", { class: "main" }, this.message, this.numbers, this.plots, this.figure));
  }

  async update() {
    const { set } = this.app;
    const rows = this.app.finished;
    this.filter = part("filter", {});
    const start = this.#start(set);
    this.y = state().ly_of ?? start.y ?? "plateau";
    this.terms = part("terms", start.x ?? []);
    this.wanted = state().filter || !start.where ? this.filter : start.where;
    this.#controls(set, rows);
    this.#figure(set);
    if (!rows.some((row) => Number.isFinite(row[this.y]))) return this.#tell(`These runs have no values of ${words(this.y)}.`);
    if (!this.terms.length && start.why) return this.#tell(start.why);
    if (!set.terms.length && !this.terms.length) return this.#tell("These runs differ in no number that a law could use. Another term may be a product of columns.");
    if (!this.terms.length) return this.#tell(`Choose at least one term for the law of the ${words(this.y)}.`);
    const key = JSON.stringify([set.key, set.version, this.y, this.terms, this.wanted]);
    if (key !== this.asked) {
      this.asked = key;
      this.fit = null;
      this.#tell("Fitting …");
      try {
        const fit = await this.app.data.law(set.key, this.y, this.terms, forServer(this.wanted, this.app.rows));
        if (key !== this.asked) return;
        this.fit = fit;
        this.#tell("");
      } catch (error) {
        if (key === this.asked) this.#tell(error.message);
        return;
      }
    }
    if (this.fit) this.#draw();
  }

  /** Returns the law to fit before the user chooses terms: the law of the figure on its own runs, or the usual law of the set. */
  #start(set) {
    const fits = set.kind === "figure" ? set.figure.laws.map((law) => law.fit) : [];
    if (state().law) return fits[Number(state().law)] ?? set.law ?? {};
    return fits.find((fit) => fit.x) ?? set.law ?? fits[0] ?? {};
  }

  /** Returns the law of the figure that is shown. */
  #printed() {
    const laws = this.app.set.figure?.laws ?? [];
    return laws[Number(state().law ?? Math.max(0, laws.findIndex((law) => law.fit.x)))];
  }

  #tell(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
    this.plots.hidden = this.numbers.hidden = Boolean(text);
    if (text && !text.endsWith("…")) this.app.firstPaint();
  }

  #controls(set, rows) {
    const numeric = this.app.columns.filter((name) => rows.some((row) => typeof row[name] === "number"));
    const set_terms = (terms) => setState({ terms, across: null });
    const typed = el("input", {
      type: "text",
      placeholder: "length/burst",
      "aria-label": "A product of columns that share one exponent",
      "data-key": "term",
      onchange: (event) => event.target.value.trim() && set_terms([...this.terms, event.target.value.trim()]),
    });
    const others = this.terms.filter((term) => !set.terms.includes(term));
    const laws = set.figure?.laws ?? [];
    const groups = [
      el("h2", { text: "The law" }),
      laws.length ? choice("Law of the figure", laws.map((law, i) => [String(i), law.name]), String(laws.indexOf(this.#printed())), (law) => setState({ law, terms: null }), "law") : null,
      choice("Explain", numeric.filter((name) => !set.axes.includes(name) && name !== "seed").map((name) => [name, words(name)]), this.y, (y) => setState({ ly_of: y }), "ly_of"),
      el(
        "fieldset",
        {},
        el("legend", { text: "by a power of" }),
        [...set.terms, ...others].map((term) => tick(words(term), this.terms.includes(term), (on) => set_terms(on ? [...this.terms, term] : this.terms.filter((each) => each !== term)), `term ${term}`)),
        this.app.data.live ? el("label", { class: "field" }, el("span", { text: "other term" }), typed) : null,
      ),
      this.terms.length > 1 ? choice("Across", this.terms.map((term) => [term, words(term)]), this.#across(), (across) => setState({ across }), "across") : null,
      choice("Colour by", [["none", "nothing"], ...this.app.cellAxes.map((name) => [name, words(name)])], this.#by() || "none", (by) => setState({ by }), "by"),
      state().terms || state().ly_of || state().filter ? button("Reset", () => setState({ terms: null, ly_of: null, across: null, filter: null })) : null,
      ...filterControls(this.app, this.filter),
    ];
    refill(this.controls, groups.filter(Boolean));
  }

  #across() {
    return this.terms.includes(state().across) ? state().across : this.terms[0];
  }

  #by() {
    const other = this.app.cellAxes.find((axis) => axis !== this.#across());
    return this.app.columns.includes(state().by) ? state().by : state().by === "none" ? "" : (other ?? "");
  }

  #draw() {
    const { law, identity, fitted, terms } = this.fit;
    const across = this.fit.x[this.terms.indexOf(this.#across())] ?? this.fit.x[0];
    const [name, power] = factor(across);
    const exponent = law.exponents[name] / power;
    const by = this.#by();
    const palette = colours(by, by ? this.app.distinct(by) : []);
    const pins = identity.map((id, i) => {
      const row = this.app.byRun.get(id) ?? {};
      return { id, row, x: terms[across][i], y: row[this.y], fitted: fitted[i], state: row.censored ? "censored" : "reached", colour: palette.of(row[by]) };
    });
    const points = pins.filter((pin) => Number.isFinite(pin.y) && pin.row.state !== "failed");
    // Values are moved along the law to the geometric mean of the other axes, so that the vertical axis keeps its unit.
    const level = geometric(points.map((pin) => pin.fitted / pin.x ** exponent));
    const xs = domain(points.map((pin) => pin.x), true);
    const groups = palette.entries.map((entry) => entry.value);
    for (const pin of points) {
      pin.shown = (pin.y / pin.fitted) * level * pin.x ** exponent;
      // Each colour has its own place around its x, so that points of different colours do not cover each other.
      const place = groups.length ? groups.indexOf(pin.row[by] ?? null) - (groups.length - 1) / 2 : 0;
      pin.at = pin.x * (xs[1] / xs[0]) ** (place * Math.min(0.008, 0.04 / groups.length));
    }
    const alone = this.fit.x.length === 1 && Object.keys(law.exponents).length === 1;
    this.#partial({ law, across, name, power, exponent, level, points, alone, by, palette });
    this.#against(points, by, palette);
    this.#residual(points, across, law, by, palette);
    this.#numbers(law);
    this.app.firstPaint();
  }

  #partial({ law, across, name, power, exponent, level, points, alone, by, palette }) {
    const xs = domain(points.map((pin) => pin.x), true);
    const centre = geometric(points.map((pin) => pin.x));
    const grid = Array.from({ length: 40 }, (_, i) => xs[0] * (xs[1] / xs[0]) ** (i / 39));
    const ends = (law.ci95[name] ?? [null, null]).map((bound) => (bound === null ? null : bound / power));
    const turned = (slope) => grid.map((x) => level * centre ** exponent * (x / centre) ** slope);
    const known = ends.every(Number.isFinite);
    const edges = known ? [turned(ends[0]), turned(ends[1])] : null;
    const published = this.#published(across, name, power, points);
    this.partial.heading.textContent = law.formula;
    this.partial.setLegend(by, palette.entries);
    this.partial.set({
      x: { label: words(across), log: true, domain: xs, at: few(points.map((pin) => pin.x)) },
      y: { label: alone ? words(this.y) : `${words(this.y)}, other terms at their geometric means`, log: true, domain: domain(points.map((pin) => pin.shown), true, 0.05) },
      curves: [
        { x: grid, y: turned(exponent), colour: ink("text"), width: 1.8 },
        ...(published ? [{ x: grid, y: grid.map((x) => published.level * (x / centre) ** published.exponent), colour: "#d55e00", width: 1.8, dash: [6, 4] }] : []),
      ],
      under: (context, view) => {
        if (!edges) return;
        const [low, high] = [0, 1].map((end) => grid.map((_, i) => (end ? Math.max : Math.min)(edges[0][i], edges[1][i])));
        band(context, grid, low, high, ink("text"), view, 0.12);
      },
      over: (context, view) => points.forEach((pin) => point(context, view.x(pin.at), view.y(pin.shown), pin.colour, pin.state)),
      ...this.#pointing(this.partial, points, (pin) => pin.at, (pin) => pin.shown),
      csv: () => this.#csv(points, across),
      summary: `${words(this.y)} against ${across} on logarithmic axes, ${points.length} runs: ${law.formula}`,
    });
    const parts = ["line: the fit", known ? "grey: the 95% interval of the exponent, around the geometric mean" : "too few runs for an interval"];
    if (published) parts.push(`dashed: ${published.words}`);
    if (points.some((pin) => pin.state === "censored")) parts.push("hollow triangles: censored runs, lower bounds");
    this.hint = parts.join("; ");
    this.partial.note.textContent = this.hint;
  }

  /** Returns the published law along the chosen term, at the geometric means of the other columns. */
  #published(across, name, power, points) {
    const printed = this.#printed()?.published;
    if (!printed?.exponents || this.y !== "plateau" || !(name in printed.exponents)) return null;
    let level = printed.C;
    for (const [column, exponent] of Object.entries(printed.exponents)) {
      const values = points.map((pin) => pin.row[column] ?? this.app.constants[column]);
      if (!values.every((value) => value > 0)) return null;
      level *= geometric(values) ** exponent;
    }
    return { level, exponent: printed.exponents[name] / power, words: `published, ${printed.formula}${printed.source ? ` (${printed.source})` : ""}` };
  }

  #against(points, by, palette) {
    const both = domain(points.flatMap((pin) => [pin.fitted, pin.y]), true);
    this.against.set({
      x: { label: `${words(this.y)} by the law`, log: true, domain: both },
      y: { label: `${words(this.y)} measured`, log: true, domain: both },
      curves: [{ x: both, y: both, colour: ink("muted"), width: 1.2 }],
      over: (context, view) => points.forEach((pin) => point(context, view.x(pin.fitted), view.y(pin.y), pin.colour, pin.state, 3)),
      ...this.#pointing(this.against, points, (pin) => pin.fitted, (pin) => pin.y),
      csv: () => csv(["identity", "law", "measured", "censored"], points.map((pin) => [pin.id, pin.fitted, pin.y, pin.state === "censored"])),
    });
    this.against.note.textContent = `R² ${shown(this.fit.law.r2)} over ${this.fit.law.runs} observed runs`;
  }

  #residual(points, across, law, by, palette) {
    const xs = domain(points.map((pin) => pin.x), true);
    const size = Math.max(...points.map((pin) => Math.max(pin.y / pin.fitted, pin.fitted / pin.y)), 1.1) ** 1.1;
    this.residuals.set({
      x: { label: words(across), log: true, domain: xs, at: few(points.map((pin) => pin.x)) },
      y: { label: "measured over law", log: true, domain: [1 / size, size] },
      curves: [{ x: xs, y: [1, 1], colour: ink("muted"), width: 1.2 }],
      under: (context, view) => law.spread && band(context, xs, [1, 1].map(() => Math.exp(-law.spread)), [1, 1].map(() => Math.exp(law.spread)), ink("text"), view, 0.08),
      over: (context, view) => points.forEach((pin) => point(context, view.x(pin.at), view.y(pin.y / pin.fitted), pin.colour, pin.state, 3)),
      ...this.#pointing(this.residuals, points, (pin) => pin.at, (pin) => pin.y / pin.fitted),
      csv: () => csv(["identity", across, "measured_over_law", "censored"], points.map((pin) => [pin.id, pin.x, pin.y / pin.fitted, pin.state === "censored"])),
    });
    const seeds = law.seed_spread ? `, ${shown(law.seed_spread)} around the means of cells` : "";
    this.residuals.note.textContent = `spread of the logarithm ${shown(law.spread)} around the law (grey)${seeds}`;
  }

  #pointing(plot, points, x, y) {
    let near = null;
    return {
      hover: (left, top, view) => {
        const size = (pin) => Math.hypot(view.x(x(pin)) - left, view.y(y(pin)) - top);
        const best = left < 0 ? null : points.reduce((found, pin) => (size(pin) < 14 && (!found || size(pin) < size(found)) ? pin : found), null);
        if (best === near) return;
        near = best;
        this.partial.note.textContent = near ? describeRun(this.app, near.row) : this.hint;
        plot.remark();
      },
      pick: () => near && setState({ run: near.id, view: "run" }),
      mark: (context, view) => {
        for (const pin of points) if (pin === near || [state().run, state().with].includes(pin.id)) point(context, view.x(x(pin)), view.y(y(pin)), ink("text"), "training", 7);
      },
    };
  }

  #csv(points, across) {
    return csv(["identity", across, this.y, "law", "shown", "censored"], points.map((pin) => [pin.id, pin.x, pin.y, pin.fitted, pin.shown, pin.state === "censored"]));
  }

  #numbers(law) {
    const printed = this.#printed()?.published;
    const censored = law.with_censored;
    const interval = (bounds) => (bounds?.[0] === null || !bounds ? "not determined" : `${shown(bounds[0])} to ${shown(bounds[1])}`);
    const names = ["C", ...Object.keys(law.exponents)];
    const value = (each, name) => (name === "C" ? each?.C : each?.exponents?.[name]);
    const heads = ["number", "fit", "95% interval", ...(censored ? ["with censored runs"] : []), ...(printed ? ["published"] : [])];
    const rows = names.map((name) => [
      name === "C" ? "C" : `exponent of ${words(name)}`,
      shown(value(law, name)),
      interval(law.ci95[name]),
      ...(censored ? [shown(value(censored, name))] : []),
      ...(printed ? [shown(value(printed, name))] : []),
    ]);
    const counts = [`${law.runs} runs`, law.censored ? `${law.censored} censored` : null, law.failed ? `${law.failed} failed (left out)` : null];
    const words_of = `${law.formula}; R² ${shown(law.r2)}; ${counts.filter(Boolean).join(", ")}; intervals by resampling ${law.ci_kind}`;
    refill(this.numbers, el("p", { class: "quiet", text: words_of }), table("Exponents and prefactor", heads, rows));
  }

  /** Shows the laws, checks and picture of the figure. */
  #figure(set) {
    if (!set.figure) return refill(this.figure);
    const laws = set.figure.laws.map((law) => [law.name, law.formula, law.published?.formula ?? null, law.level, law.verdict ?? "no verdict", law.why]);
    const checks = set.figure.checks.map((check) => [check.name, short(check.interval ? [check.measured] : check.measured), short(check.published ?? check.expected), check.published === null ? (check.holds === null ? (check.interval ? "undecided" : "no verdict") : check.holds ? "as expected" : "not as expected") : check.verdict ?? "no verdict"]);
    const picture = set.kind === "figure" ? this.app.data.picture(set.key) : null;
    const image = picture ? el("img", { src: picture, alt: `The figure ${set.figure.figure}, drawn by emergo`, class: "picture", onerror: (event) => event.target.remove() }) : null;
    const children = [
      el("h2", { text: `${set.figure.figure}: ${set.figure.title ?? ""}` }),
      set.figure.caveat ? el("p", { class: "quiet", text: `${set.figure.preset} preset: ${set.figure.caveat}` }) : null,
      laws.length ? table("Laws of the figure", ["law", "ours", "published", "level", "verdict", "reason"], laws) : null,
      checks.length ? table("Checks of the figure", ["check", "measured", "published or expected", "verdict"], checks) : null,
      image,
    ];
    refill(this.figure, children.filter(Boolean));
  }

  destroy() {
    this.asked = null;
    for (const plot of [this.partial, this.against, this.residuals]) plot.destroy();
  }
}

const short = (value) => (Array.isArray(value) ? value.map((each) => (Array.isArray(each) ? `${shown(each[0])} [${each.slice(1).map(shown).join(", ")}]` : shown(each))).join("; ") : shown(value));

const geometric = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / Math.max(values.length, 1));

/** Returns the distinct values of an axis if they are few. */
const few = (values) => {
  const found = [...new Set(values)].sort((a, b) => a - b);
  return found.length <= FEW ? found : null;
};

/** Returns the first column of a term and its power: `length/burst` gives length and 1. */
function factor(term) {
  const [, name, power] = /^\s*([A-Za-z_]\w*)\s*(?:\^\s*([-+\d.eE]+))?/.exec(term);
  return [name, power ? Number(power) : 1];
}
