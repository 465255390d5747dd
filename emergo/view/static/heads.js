// Classes of attention heads: when each head entered a class, and the classes at one step.
import { ink } from "./colour.js";
import { csv, el, refill, shown, table } from "./dom.js";
import { FONT, Sheet } from "./figure.js";

const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"];
const name = (kind) => kind.replaceAll("_", "-");

export class HeadClasses {
  constructor() {
    this.map = new Sheet("Classes at this step", { name: "head-classes", height: 160 });
    this.list = el("div", {});
    this.node = el("section", { "aria-label": "Head classes" }, el("h3", { text: "Head classes" }), el("div", { class: "pair" }, this.map.node, this.list));
  }

  /** Shows the classes of a run; `indices` are all [layer, head] with scores. */
  update(classes, indices, step) {
    this.node.hidden = !indices.length;
    if (!indices.length) return;
    const rows = classes.map((each) => [`${each.layer}.${each.head}`, name(each.class), ...when(each), each.score]);
    const heads = ["head", "class", "since step", "between rows", "score now"];
    const none = el("p", { class: "quiet", text: "No head has put half of its weight on the keys of a class in two scores in a row." });
    refill(this.list, rows.length ? table("A head is of a class from the first of two scores of at least half of its weight on the keys of the class", heads, rows) : none);
    const now = classes.filter((each) => each.step <= step);
    const kinds = [...new Set(classes.map((each) => each.class))].sort();
    const colour = (kind) => COLOURS[kinds.indexOf(kind) % COLOURS.length];
    const [layers, columns] = [0, 1].map((axis) => [...new Set(indices.map((index) => index[axis]))].sort((a, b) => a - b));
    const of = (layer, head) => now.filter((each) => each.layer === layer && each.head === head);
    this.map.heading.textContent = `Classes at step ${shown(step)}`;
    this.map.set({
      height: Math.max(110, Math.min(420, 44 + 24 * layers.length)),
      draw: (context, width, height) => drawClasses(context, width, height, layers, columns, of, colour),
      csv: () => csv(["layer", "head", "class", "step", "low", "high", "score"], classes.map((each) => [each.layer, each.head, each.class, each.step, each.low, each.high, each.score])),
      summary: now.length ? now.map((each) => `head ${each.layer}.${each.head}: ${name(each.class)}`).join("; ") : "no head is of a class at this step",
    });
    this.map.setLegend("class", kinds.map((kind) => ({ value: name(kind), colour: colour(kind) })));
  }

  destroy() {
    this.map.destroy();
  }
}

/** Returns the step of a class and its interval as texts. */
function when({ step, low, high }) {
  return low === null ? ["first row", shown(high)] : [Math.round(step), `${shown(low)} to ${shown(high)}`];
}

/** Draws one cell per head; a head of several classes has one stripe per class. */
function drawClasses(context, width, height, layers, columns, of, colour) {
  const [left, top, bottom] = [64, 6, 38];
  const [w, h] = [(width - left - 8) / columns.length, (height - top - bottom) / layers.length];
  layers.forEach((layer, i) => {
    columns.forEach((head, j) => {
      const classes = of(layer, head);
      const [x, y, wide, tall] = [left + j * w, top + i * h, Math.max(1, w - 2), Math.max(1, h - 2)];
      context.fillStyle = ink("grid");
      context.fillRect(x, y, wide, tall);
      classes.forEach((each, k) => {
        context.fillStyle = colour(each.class);
        context.fillRect(x, y + (k * tall) / classes.length, wide, tall / classes.length);
      });
    });
  });
  Object.assign(context, { fillStyle: ink("muted"), font: FONT, textAlign: "right", textBaseline: "middle" });
  const [everyLayer, everyHead] = [Math.max(1, Math.ceil(12 / h)), Math.max(1, Math.ceil(24 / w))];
  layers.forEach((layer, i) => i % everyLayer === 0 && context.fillText(layer, left - 6, top + (i + 0.5) * h));
  context.textAlign = "center";
  columns.forEach((head, j) => j % everyHead === 0 && context.fillText(head, left + (j + 0.5) * w, height - bottom + 12));
  context.fillText("head (rows: layers)", left + (width - left) / 2, height - 8);
}
