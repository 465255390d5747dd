// The scatter matrix: every pair of some columns, one point per run.
import { ink } from "./colour.js";
import { csv, el, shown, tick, words } from "./dom.js";
import { FONT, Sheet, shortened } from "./figure.js";
import { coordinate } from "./parallel.js";
import { point } from "./plot.js";
import { part, setState } from "./state.js";

const MOST = 6; // most columns
const POINTS = 3000; // most points of a pair
const [EDGE, GAP] = [58, 10]; // pixels left and below for the labels, and between pairs

export class Matrix {
  constructor(app) {
    this.app = app;
    this.figure = new Sheet("Scatter matrix", { name: "matrix", height: 480 });
    this.boxes = el("div", { class: "boxes", role: "group", "aria-label": "Columns of the scatter matrix" });
    // Drawn when it is opened: most visits do not need it.
    this.node = el("details", { class: "matrix", ontoggle: () => this.#show() }, el("summary", {}, el("h3", { text: "Scatter matrix" })), this.boxes, this.figure.node);
    this.figure.heading.textContent = "Every pair of columns";
  }

  update(visible, colour, lit) {
    this.all = this.app.columns.filter((name) => name !== "identity" && this.app.distinct(name).filter((value) => typeof value === "number").length > 1);
    this.node.hidden = this.all.length < 2;
    Object.assign(this, { visible, colour, lit });
    this.#show();
  }

  #show() {
    if (!this.node.open || this.node.hidden) return;
    const usual = this.all.includes("plateau") ? [...this.app.cellAxes.filter((name) => this.all.includes(name)).slice(0, 3), "plateau"] : this.all.slice(0, 3);
    this.columns = part("matrix", usual).filter((name) => this.all.includes(name)).slice(0, MOST);
    const choose = (name, on) => setState({ matrix: this.all.filter((each) => (each === name ? on : this.columns.includes(each))) });
    const boxes = this.all.map((name) => tick(words(name), this.columns.includes(name), (on) => choose(name, on), `matrix ${name}`));
    const focus = this.boxes.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.boxes.replaceChildren(...boxes);
    if (focus) boxes.find((box) => box.firstChild.dataset.key === focus)?.firstChild.focus();
    this.figure.node.hidden = this.columns.length < 2;
    if (this.columns.length < 2) return;
    const axes = this.columns.map((name) => coordinate(name, this.app.distinct(name).filter((value) => typeof value === "number")));
    const drawn = this.visible.length > POINTS ? this.visible.filter((_, i) => i % Math.ceil(this.visible.length / POINTS) === 0) : this.visible;
    this.figure.set({
      height: Math.min(640, 120 + 130 * (axes.length - 1)),
      draw: (context, width, height) => this.#draw(context, width, height, axes, drawn),
      framed: (canvas, width, height) => (canvas.onclick = (event) => this.#pick(event, width, height, axes, drawn)),
      csv: () => csv(["identity", ...this.columns], this.visible.map((row) => [row.identity, ...this.columns.map((name) => row[name])])),
      summary: `Scatter plots of every pair of ${this.columns.map(words).join(", ")} for ${this.visible.length} runs`,
    });
    const share = drawn.length < this.visible.length ? `${drawn.length} of ${this.visible.length} points are drawn; ` : "";
    this.figure.note.textContent = `${share}● reached, △ censored, × failed; click a point to highlight its run`;
  }

  /** Returns the place of a pair: a column below the diagonal. */
  #pair(width, height, count, row, column) {
    const [wide, tall] = [(width - EDGE) / (count - 1), (height - EDGE) / (count - 1)];
    return { left: EDGE + column * wide, top: (row - 1) * tall, wide: wide - GAP, tall: tall - GAP };
  }

  *#pairs(width, height, axes) {
    for (let row = 1; row < axes.length; row += 1) {
      for (let column = 0; column < row; column += 1) {
        const { left, top, wide, tall } = this.#pair(width, height, axes.length, row, column);
        const at = (run) => [axes[column].share(run[axes[column].name]), axes[row].share(run[axes[row].name])];
        const place = (run) => {
          const [x, y] = at(run);
          return x === null || y === null ? null : [left + 5 + x * (wide - 10), top + tall - 5 - y * (tall - 10)];
        };
        yield { left, top, wide, tall, place, row, column };
      }
    }
  }

  #draw(context, width, height, axes, drawn) {
    const radius = drawn.length > 500 ? 1.6 : 2.6;
    for (const { left, top, wide, tall, place, row, column } of this.#pairs(width, height, axes)) {
      Object.assign(context, { strokeStyle: ink("line"), lineWidth: 1, globalAlpha: 1 });
      context.beginPath();
      context.rect(left, top, wide, tall);
      context.stroke();
      context.globalAlpha = 0.75;
      for (const run of drawn) {
        const at = place(run);
        if (at) point(context, ...at, this.colour(run), run.state, radius);
      }
      context.globalAlpha = 1;
      for (const run of this.lit) {
        const at = place(run);
        if (at) point(context, ...at, ink("text"), "training", 6);
      }
      const [x, y] = [axes[column], axes[row]];
      Object.assign(context, { fillStyle: ink("muted"), font: FONT, textBaseline: "middle", textAlign: "center" });
      if (row === axes.length - 1) this.#label(context, x, left, top + tall, wide);
      if (column > 0) continue;
      context.save();
      context.translate(left, top + tall);
      context.rotate(-Math.PI / 2);
      this.#label(context, y, 0, -EDGE, tall, true);
      context.restore();
    }
  }

  /** Labels the ends of an axis and names it; `turned` for the vertical one. */
  #label(context, axis, left, top, length, turned = false) {
    const [low, high] = axis.ends;
    const [numbers, name] = turned ? [EDGE - 12, EDGE - 34] : [12, 34];
    context.fillText(shortened(context, words(axis.name), length), left + length / 2, top + name);
    context.textAlign = "left";
    context.fillText(shown(low), left, top + numbers);
    context.textAlign = "right";
    context.fillText(shown(high), left + length, top + numbers);
    context.textAlign = "center";
  }

  #pick(event, width, height, axes, drawn) {
    let [best, near] = [12, null];
    for (const { place } of this.#pairs(width, height, axes)) {
      for (const run of drawn) {
        const at = place(run);
        const away = at ? Math.hypot(at[0] - event.offsetX, at[1] - event.offsetY) : Infinity;
        if (away < best) [best, near] = [away, run.identity];
      }
    }
    if (near) setState({ run: near });
  }
}
