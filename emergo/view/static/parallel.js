// Parallel coordinates: one line per run over its axes and its plateau. Dragging along an axis sets a filter.
import { ink } from "./colour.js";
import { csv, shown, words } from "./dom.js";
import { FONT, Sheet, shortened } from "./figure.js";
import { change } from "./filter.js";
import { spread } from "./ticks.js";

const EDGE = { top: 34, bottom: 22, side: 56 };
const [TICK, GAP] = [4, 8]; // pixels from an axis to the end of a tick, and to the label
const MOST = 9; // most axes next to the plateau
const APART = 0.07; // smallest distance between labels, as a share of the axis
const LINES = 3000; // most lines drawn
const TEXTS = 12; // most labels of an axis of texts

export class Parallel {
  constructor(app) {
    this.app = app;
    this.figure = new Sheet("Axes and plateau", { name: "parallel", height: 300 });
  }

  update(visible, palette, by, filter, lit) {
    const { rows, cellAxes } = this.app;
    const differing = cellAxes.filter((name) => this.app.distinct(name).length > 1).slice(0, MOST);
    const last = rows.some((row) => Number.isFinite(row.plateau)) ? ["plateau"] : [];
    this.axes = [...differing, ...last].map((name) => coordinate(name, this.app.distinct(name)));
    this.figure.node.hidden = this.axes.length < 2;
    if (this.axes.length < 2) return;
    const drawn = visible.length > LINES ? visible.filter((_, i) => i % Math.ceil(visible.length / LINES) === 0) : visible;
    const columns = this.axes.map((axis) => axis.name);
    this.filter = filter;
    this.figure.set({
      draw: (context, width, height) => this.#draw(context, width, height, drawn, palette, by, lit),
      framed: (canvas, width, height) => this.#drags(canvas, width, height),
      csv: () => csv(["identity", ...columns, "state"], visible.map((row) => [row.identity, ...columns.map((name) => row[name]), row.state])),
      summary: `Parallel coordinates over ${columns.join(", ")} for ${visible.length} runs; the filter and the table have the same content.`,
    });
    const part = drawn.length < visible.length ? ` ${drawn.length} of ${visible.length} lines are drawn.` : "";
    this.figure.note.textContent = `One line per run, coloured by ${by ? words(by) : "nothing"}; dashed: censored. Drag along an axis to filter, click it to clear.${part}`;
  }

  /** Returns the axes that fit, always with the plateau, and their positions. */
  #room(width) {
    const count = Math.min(this.axes.length, Math.max(2, 1 + Math.floor((width - 2 * EDGE.side) / 78)));
    const axes = [...this.axes.slice(0, count - 1), this.axes.at(-1)];
    return { axes, places: axes.map((_, i) => EDGE.side + (i * (width - 2 * EDGE.side)) / (count - 1)) };
  }

  #draw(context, width, height, rows, palette, by, lit) {
    const { axes, places } = this.#room(width);
    const [top, bottom] = [EDGE.top, height - EDGE.bottom];
    const y = (axis, value) => bottom - axis.share(value) * (bottom - top);
    const alpha = Math.min(0.85, Math.max(0.08, 5 / Math.sqrt(Math.max(rows.length, 1))));
    Object.assign(context, { globalAlpha: alpha, lineWidth: 1 / (devicePixelRatio || 1) }); // wider lines take ten times as long
    const trace = (row, colour) => {
      context.beginPath();
      let down = false;
      axes.forEach((axis, i) => {
        const value = row[axis.name];
        if (axis.share(value) === null) return;
        if (down) context.lineTo(places[i], y(axis, value));
        else context.moveTo(places[i], y(axis, value));
        down = true;
      });
      context.setLineDash(row.state === "censored" ? [4, 3] : []);
      context.strokeStyle = colour;
      context.stroke();
    };
    for (const row of rows) trace(row, palette.of(row[by]));
    context.globalAlpha = 1;
    for (const row of lit) {
      for (const [colour, width] of [["ground", 6], ["text", 2.6]]) {
        context.lineWidth = width;
        trace(row, ink(colour));
      }
    }
    context.setLineDash([]);
    axes.forEach((axis, i) => {
      Object.assign(context, { strokeStyle: ink("muted"), lineWidth: 1, font: FONT, textAlign: "center", textBaseline: "middle" });
      context.beginPath();
      context.moveTo(places[i], top);
      context.lineTo(places[i], bottom);
      context.stroke();
      context.fillStyle = ink("text");
      context.fillText(shortened(context, words(axis.name), Math.min(2 * EDGE.side, 0.94 * (places[1] - places[0]))), places[i], 12);
      for (const value of axis.ticks) this.#label(context, axis.label(value), places[i], y(axis, value), i === 0, i === axes.length - 1);
    });
  }

  /** Labels a value next to its axis: outside of all lines if it fits, otherwise on a background. */
  #label(context, text, x, y, first, last) {
    const width = context.measureText(text).width;
    const left = first ? width + GAP <= EDGE.side : last && width + GAP > EDGE.side;
    const start = left ? x - GAP - width : x + GAP;
    context.beginPath();
    context.moveTo(x - (left ? TICK : 0), y);
    context.lineTo(x + (left ? 0 : TICK), y);
    context.stroke();
    context.globalAlpha = 0.85;
    context.fillStyle = ink("ground");
    context.fillRect(start - 2, y - 8, width + 4, 16);
    Object.assign(context, { globalAlpha: 1, fillStyle: ink("muted"), textAlign: "left" });
    context.fillText(text, start, y);
  }

  #drags(canvas, width, height) {
    const { axes, places } = this.#room(width);
    const [top, bottom] = [EDGE.top, height - EDGE.bottom];
    const axisAt = (x) => places.reduce((best, place, i) => (Math.abs(place - x) < Math.abs(places[best] - x) ? i : best), 0);
    let start = null;
    canvas.onpointerdown = (event) => {
      start = { y: event.offsetY, axis: axes[axisAt(event.offsetX)] };
      canvas.setPointerCapture(event.pointerId);
    };
    canvas.onpointerup = (event) => {
      if (!start) return;
      const { axis, y } = start;
      start = null;
      const shares = [y, event.offsetY].map((each) => Math.min(1, Math.max(0, (bottom - each) / (bottom - top)))).sort((a, b) => a - b);
      if (Math.abs(event.offsetY - y) < 4) return change(this.filter, axis.name, null);
      const kept = axis.values.filter((value) => axis.share(value) >= shares[0] - 1e-9 && axis.share(value) <= shares[1] + 1e-9);
      if (!kept.length) return;
      const numbers = kept.every((value) => typeof value === "number") && axis.values.length > 24;
      change(this.filter, axis.name, numbers ? { low: Math.min(...kept), high: Math.max(...kept) } : kept);
    };
  }
}

/** Builds an axis: positions of values from 0 to 1, the labelled values, and the ends. */
export function coordinate(name, distinct) {
  const values = distinct.filter((value) => value !== null);
  const numeric = values.every((value) => typeof value === "number");
  if (!numeric) {
    const ordered = values.map(String).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const same = ordered[0].length > 14 ? [...ordered[0]].findIndex((_, i) => ordered.some((each) => each[i] !== ordered[0][i])) : 0;
    const label = (value) => {
      const rest = same > 4 ? `…${value.slice(same)}` : value; // drop the common prefix
      return rest.length > 20 ? `${rest.slice(0, 8)}…${rest.slice(-10)}` : rest;
    };
    const share = (value) => (value === null || value === undefined ? null : (ordered.indexOf(String(value)) + 0.5) / ordered.length);
    const every = Math.ceil(ordered.length / TEXTS);
    return { name, values, share, label, ticks: ordered.filter((_, i) => i % every === 0) };
  }
  const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  const log = low > 0 && high / low >= 8;
  const at = log ? Math.log : (value) => value;
  const share = (value) => (Number.isFinite(value) ? (high > low ? (at(value) - at(low)) / (at(high) - at(low)) : 0.5) : null);
  const even = Array.from({ length: 3 }, (_, i) => (log ? low * (high / low) ** ((i + 1) / 4) : low + ((high - low) * (i + 1)) / 4));
  const inner = even.map((value) => Number(value.toPrecision(2))).filter((value) => value > low && value < high);
  const ticks = spread(values.length <= 8 ? values.sort((a, b) => a - b) : [low, ...inner, high], share, APART);
  const whole = name === "plateau" ? 10 : 100; // larger numbers are written without decimals
  const label = (value) => shown(Math.abs(value) >= whole ? Math.round(value) : Number(value.toPrecision(3)));
  return { name, values, share, label: values.length <= 8 && name !== "plateau" ? shown : label, ticks, ends: [low, high] };
}
