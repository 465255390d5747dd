// Plots with axes. uPlot draws the axes and handles the mouse; this module draws curves and points.
import uPlot from "./vendor/uplot.js";
import { ink } from "./colour.js";
import { afterFrame, shown } from "./dom.js";
import { FONT, Figure } from "./figure.js";
import { SvgContext, recorded } from "./svg.js";
import { logTicks } from "./ticks.js";

const SEGMENTS = 60000; // line segments per frame, so that frames stay short with many curves
const WIDE = 5; // relative cost of a segment that is wider than a device pixel, or part of an area

/** Returns the range of an axis with a margin; on a logarithmic axis only positive values count. */
export function domain(values, log, room = 0.04) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (log) {
    const more = Math.max((high / low) ** room, 1.05);
    return [low / more, high * more];
  }
  const more = (high - low || Math.abs(high) || 1) * room;
  return [low - more, high + more];
}

const position = ([low, high], log, length, flip) => {
  const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high];
  const scale = length / (b - a);
  if (flip) return log ? (value) => length - (Math.log(value) - a) * scale : (value) => length - (value - a) * scale;
  return log ? (value) => (Math.log(value) - a) * scale : (value) => (value - a) * scale;
};

export class Plot extends Figure {
  #painting = 0;
  #drawn = 0;

  /** Sets the content of the plot. Fields of `spec`:
   *  - `x`, `y`: {label, log, domain}; a logarithmic axis may have `at`, the values with labels
   *  - `curves`: {x, y, colour, alpha, width, dash}; with {low, high, shade} a curve also has a band
   *  - `under`, `over`: functions that draw below and above the curves; `mark` draws the highlight
   *  - `hover(left, top, view)`, `pick()`, `zoom([x0, x1, y0, y1] or null)`, `csv()`: callbacks
   *  - `summary`: description for screen readers
   *  - `painted()`: called when some curves are visible; `finished()`: called when all are */
  set(spec) {
    this.spec = { curves: [], ...spec };
    this.csv = spec.csv;
    this.area.setAttribute("aria-label", spec.summary ?? this.heading.textContent);
    this.frame();
  }

  add(curves) {
    this.spec.curves.push(...curves);
    if (this.view) this.#go();
  }

  frame() {
    this.width = this.area.clientWidth;
    if (!this.width || !this.spec) return;
    const { x, y } = this.spec;
    const axes = JSON.stringify([x, y, this.width, devicePixelRatio]);
    if (axes !== this.axes) this.#frameAxes(x, y);
    this.axes = axes;
    this.paint();
  }

  #frameAxes(x, y) {
    this.uplot?.destroy();
    this.uplot = new uPlot(this.#options(x, y), [x.domain, y.domain], this.area);
    this.uplot.batch(() => {}); // forces the layout, which determines the box
    const ratio = devicePixelRatio || 1;
    const { left, top, width, height } = this.uplot.bbox;
    this.box = { left: left / ratio, top: top / ratio, width: width / ratio, height: height / ratio };
    this.inkCanvas = this.canvas(this.uplot.over, this.box.width, this.box.height, this.inkCanvas);
    this.markCanvas = this.canvas(this.uplot.over, this.box.width, this.box.height, this.markCanvas);
    this.view = {
      x: position(x.domain, x.log, this.box.width),
      y: position(y.domain, y.log, this.box.height, true),
      width: this.box.width,
      height: this.box.height,
    };
  }

  #options(x, y) {
    const ticks = (side, length, least) => {
      if (!side.log) return { values: (u, splits) => splits.map((value) => (value === null ? "" : shown(Number(value.toPrecision(12))))) };
      const { splits, values } = logTicks(side.domain, length, least, side.at);
      return { splits: () => splits, filter: (u, all) => all, values: () => values };
    };
    const axis = (side) => ({
      label: side.label,
      stroke: ink("muted"),
      font: FONT,
      labelFont: FONT,
      labelSize: 24,
      labelGap: 4,
      gap: 6,
      grid: { stroke: ink("grid"), width: 1 },
      ticks: { show: false },
    });
    const scale = (side) => ({ time: false, auto: false, distr: side.log ? 3 : 1, range: () => side.domain });
    const tall = (u, values) => 16 + 6.6 * Math.max(2, ...(values ?? []).map((value) => (value ?? "").length));
    return {
      width: this.width,
      height: this.height,
      legend: { show: false },
      scales: { x: scale(x), y: scale(y) },
      axes: [
        { ...axis(x), ...ticks(x, this.width - 90, 44), size: 26, space: 56 },
        { ...axis(y), ...ticks(y, this.height - 60, 22), size: tall, space: 34 },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      padding: [10, 14, 0, 0],
      cursor: {
        show: Boolean(this.spec.hover || this.spec.zoom),
        x: false,
        y: false,
        points: { show: false },
        drag: { x: Boolean(this.spec.zoom), y: Boolean(this.spec.zoom), uni: 24, setScale: false },
        bind: { dblclick: () => null },
      },
      hooks: {
        ready: [
          (u) => {
            u.over.addEventListener("dblclick", () => this.spec.zoom?.(null));
            u.over.addEventListener("click", () => this.spec.pick?.());
          },
        ],
        setCursor: [(u) => this.view && this.spec.hover?.(u.cursor.left, u.cursor.top, this.view)],
        setSelect: [(u) => this.#selected(u)],
      },
    };
  }

  #selected(u) {
    const { left, top, width, height } = u.select;
    if (width < 4 || height < 4) return;
    const [x0, x1] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    const [y0, y1] = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
    const range = [x0, x1, y0, y1].map((value) => Number(value.toPrecision(4)));
    // A zoom replaces this uPlot, which first has to remove its own listeners of the mouse.
    setTimeout(() => this.spec.zoom?.(range));
  }

  paint() {
    const context = this.inkCanvas.getContext("2d");
    context.clearRect(0, 0, this.box.width, this.box.height);
    this.#painting += 1;
    this.#drawn = 0;
    this.spec.under?.(context, this.view);
    this.remark();
    this.#go(true);
  }

  /** Redraws the highlight. */
  remark() {
    const context = this.markCanvas.getContext("2d");
    context.clearRect(0, 0, this.box.width, this.box.height);
    this.spec.mark?.(context, this.view);
  }

  /** Draws some curves per frame, then the bands below them, then the marks above them. */
  #go(restart = false) {
    if (!restart && this.busy) return;
    const painting = this.#painting;
    const context = this.inkCanvas.getContext("2d");
    const finish = () => {
      if (painting !== this.#painting) return;
      this.#work(false);
      this.spec.finished?.();
    };
    const some = (next = requestAnimationFrame) => {
      if (painting !== this.#painting) return;
      const { curves } = this.spec;
      const end = curves[0]?.low ? 2 * curves.length : curves.length;
      for (let left = SEGMENTS; left > 0 && this.#drawn < end; this.#drawn += 1) {
        const curve = curves[this.#drawn % curves.length];
        const wide = this.#drawn >= curves.length || (curve.width ?? 2) * (devicePixelRatio || 1) > 1;
        if (this.#drawn < curves.length) line(context, curve, this.view, this.spec);
        else shade(context, curve, this.view, "destination-over");
        left -= curve.x.length * (wide ? WIDE : 1);
      }
      if (curves.length) this.spec.painted?.();
      if (this.#drawn < end) return next(() => some());
      this.spec.over?.(context, this.view);
      afterFrame(finish);
    };
    this.#work(true);
    some(afterFrame);
  }

  /** Marks the plot as busy, also for screen readers. */
  #work(busy) {
    this.busy = busy;
    if (busy) this.area.setAttribute("aria-busy", "true");
    else this.area.removeAttribute("aria-busy");
  }

  compose(context) {
    const ratio = devicePixelRatio || 1;
    const { left, top, width, height } = this.box;
    const vector = context instanceof SvgContext;
    if (vector) {
      context.save();
      context.scale(1 / ratio, 1 / ratio);
      recorded(this.uplot.ctx, context, () => this.uplot.batch(() => this.uplot.redraw()));
      context.restore();
      context.parts.push(`<clipPath id="plot"><rect x="${left}" y="${top + 26}" width="${width}" height="${height}"/></clipPath><g clip-path="url(#plot)">`);
    } else {
      context.drawImage(this.uplot.ctx.canvas, 0, 0, this.width, this.height);
    }
    context.save();
    context.translate(left, top);
    if (!vector) {
      context.beginPath();
      context.rect(0, 0, width, height);
      context.clip();
    }
    this.spec.under?.(context, this.view);
    for (const curve of this.spec.curves) if (curve.low) shade(context, curve, this.view);
    for (const curve of this.spec.curves) line(context, curve, this.view, this.spec);
    this.spec.over?.(context, this.view);
    this.spec.mark?.(context, this.view);
    context.restore();
    if (vector) context.parts.push("</g>");
  }

  destroy() {
    super.destroy();
    this.#painting += 1;
    this.uplot?.destroy();
  }
}

/** Draws one curve. Values that a logarithmic axis cannot show are left out; isolated values become dashes. */
export function line(context, curve, view, { x: xAxis = {}, y: yAxis = {} } = {}) {
  const { x, y } = curve;
  const shown = (i) => i < x.length && Number.isFinite(y[i]) && !(xAxis.log && !(x[i] > 0)) && !(yAxis.log && !(y[i] > 0));
  context.strokeStyle = curve.colour;
  context.globalAlpha = curve.alpha ?? 1;
  context.lineWidth = curve.width ?? 1.2;
  context.setLineDash(curve.dash ?? []);
  context.beginPath();
  let down = false;
  for (let i = 0; i < x.length; i += 1) {
    if (!shown(i)) {
      down = false;
      continue;
    }
    const [px, py] = [view.x(x[i]), view.y(y[i])];
    if (down) context.lineTo(px, py);
    else if (shown(i + 1)) context.moveTo(px, py);
    else {
      context.moveTo(px - 3, py);
      context.lineTo(px + 3, py);
    }
    down = true;
  }
  context.stroke();
  context.globalAlpha = 1;
  context.setLineDash([]);
}

/** Draws the band of a curve. */
function shade(context, curve, view, operation = "source-over") {
  context.globalCompositeOperation = operation;
  band(context, curve.x, curve.low, curve.high, curve.colour, view, curve.shade);
  context.globalCompositeOperation = "source-over";
}

/** Fills the area between two curves. */
export function band(context, x, low, high, colour, view, alpha = 0.16) {
  context.beginPath();
  x.forEach((value, i) => (i ? context.lineTo(view.x(value), view.y(low[i])) : context.moveTo(view.x(value), view.y(low[i]))));
  for (let i = x.length - 1; i >= 0; i -= 1) context.lineTo(view.x(x[i]), view.y(high[i]));
  context.closePath();
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
}

/** Draws a run as a point whose shape tells its state: a lower bound is a hollow triangle, a failure a cross, a run in training a ring. */
export function point(context, px, py, colour, state = "reached", radius = 3.6) {
  context.beginPath();
  if (state === "censored") {
    context.moveTo(px, py - radius * 1.3);
    context.lineTo(px + radius * 1.15, py + radius);
    context.lineTo(px - radius * 1.15, py + radius);
    context.closePath();
  } else if (state === "failed") {
    context.moveTo(px - radius, py - radius);
    context.lineTo(px + radius, py + radius);
    context.moveTo(px - radius, py + radius);
    context.lineTo(px + radius, py - radius);
  } else context.arc(px, py, radius, 0, 2 * Math.PI);
  Object.assign(context, { strokeStyle: colour, fillStyle: colour, lineWidth: 1.4 });
  if (["censored", "failed", "training"].includes(state)) context.stroke();
  else context.fill();
}
