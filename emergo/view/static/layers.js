// Curves with one number per layer, such as the agreement of gradients.
import { ink, shade } from "./colour.js";
import { csv, curveWords, el, shown } from "./dom.js";
import { Plot, domain } from "./plot.js";

const WINDOW = 9; // rows of the running mean of noisy families

export class LayerPlots {
  constructor() {
    this.pair = el("div", { class: "pair" });
    this.node = el("section", { class: "layers", "aria-label": "Layers" }, el("h3", { text: "Layers" }), this.pair);
    this.plots = [];
  }

  /** Shows families of curves; `maps` holds them by column, `families` their indices by name. */
  update(families, maps, steps, log) {
    const names = Object.keys(families).filter((name) => families[name][0].length === 1);
    this.node.hidden = !names.length;
    if (this.plots.length !== names.length) {
      this.plots.forEach((plot) => plot.destroy());
      this.plots = names.map((name) => new Plot(curveWords(name), { name, height: 240 }));
      this.pair.replaceChildren(...this.plots.map((plot) => plot.node));
    }
    names.forEach((name, i) => draw(this.plots[i], name, families[name].flat(), maps, steps, log));
  }

  destroy() {
    for (const plot of this.plots) plot.destroy();
  }
}

function draw(plot, name, indices, maps, steps, log) {
  const [cosine, norm] = [name.startsWith("agreement"), name.startsWith("gradient")];
  const layers = indices.filter((layer) => maps[`${name}_${layer}`]);
  const curves = layers.map((layer, i) => {
    const values = maps[`${name}_${layer}`].map((value) => value ?? NaN);
    return { x: steps, y: cosine ? runningMean(values) : values, colour: shade(layers.length > 1 ? i / (layers.length - 1) : 0.3), width: 1.6 };
  });
  const xs = domain(steps, log.x, 0.01);
  const zero = { x: xs, y: [0, 0], colour: ink("faint"), dash: [2, 4] };
  plot.name = name;
  plot.heading.textContent = curveWords(name);
  plot.set({
    x: { label: "step", log: log.x, domain: xs },
    y: { label: cosine ? "cosine" : curveWords(name).split(",")[0], log: norm, domain: domain(curves.flatMap((curve) => curve.y), norm) },
    curves: cosine ? [zero, ...curves] : curves,
    csv: () => csv(["step", ...layers.map((layer) => `${name}_${layer}`)], steps.map((step, i) => [step, ...curves.map((curve) => curve.y[i])])),
    summary: `${curveWords(name)} of ${layers.length} layers; at the end ${curves.map((curve) => shown(curve.y.at(-1))).join(", ")}`,
  });
  plot.setLegend("layer", layers.map((layer, i) => ({ value: layer, colour: curves[i].colour })));
  plot.note.textContent = cosine ? `between the gradients of two halves of a batch; mean over ${WINDOW} rows` : "";
}

function runningMean(values) {
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - (WINDOW - 1) / 2), i + (WINDOW + 1) / 2).filter(Number.isFinite);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : NaN;
  });
}
