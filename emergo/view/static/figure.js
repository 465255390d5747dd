// A figure with a heading, a legend, a line about the highlighted item, and downloads.
import { ink } from "./colour.js";
import { button, el, refill, save, shown, swatch, words } from "./dom.js";
import { SvgContext } from "./svg.js";

export const FONT = "12px system-ui, sans-serif";
const LEGEND = 130; // width of the legend in a downloaded picture
const MANY = 14; // longer legends show five entries

export class Figure {
  constructor(title, { name = title, height = 340 } = {}) {
    this.name = name;
    this.height = height;
    this.area = el("div", { class: "plot", tabindex: "0", role: "img", "data-key": `plot ${name}` });
    this.area.style.height = `${height}px`;
    this.note = el("p", { class: "readout" });
    this.legend = el("div", { class: "legend" });
    this.heading = el("h3", { text: title });
    const files = el("div", { class: "files", role: "group", "aria-label": `Download ${title}` });
    for (const kind of ["svg", "png", "csv"]) files.append(button(kind.toUpperCase(), () => this.download(kind), { class: "small" }));
    const head = el("figcaption", {}, this.heading, files);
    this.node = el("figure", { "data-figure": name }, head, el("div", { class: "with-legend" }, this.area, this.legend), this.note);
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.area);
  }

  resized() {
    const width = this.area.clientWidth;
    if (width && width !== this.width) this.frame();
  }

  /** Creates or resizes and clears a canvas in device pixels, scaled so that drawing uses CSS pixels. */
  canvas(parent, width, height, canvas = el("canvas", { "aria-hidden": "true" })) {
    const ratio = devicePixelRatio || 1;
    if (canvas.parentNode !== parent) parent.append(canvas);
    const context = canvas.getContext("2d");
    const size = [width, height].map((side) => Math.round(side * ratio));
    if (canvas.width !== size[0] || canvas.height !== size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      context.scale(ratio, ratio);
    } else context.clearRect(0, 0, width, height);
    return canvas;
  }

  /** Sets the legend. Entries are {value, colour, mark}; a click calls `pick` with the value. */
  setLegend(title, entries, pick) {
    this.key = { title, entries };
    if (!title || !entries.length) return refill(this.legend);
    const head = el("p", { class: "legend-title", text: words(title) });
    const few = entries.length <= MANY;
    const kept = few ? entries : [0, 0.25, 0.5, 0.75, 1].map((share) => entries[Math.round(share * (entries.length - 1))]);
    const items = kept.map(({ value, colour, mark }) => {
      const label = [swatch(colour, mark), el("span", { text: shown(value) })];
      const attributes = { type: "button", class: "plain", title: "show only these", "data-key": `legend ${value}` };
      return el("li", {}, pick && few ? el("button", { ...attributes, onclick: () => pick(value) }, label) : el("span", {}, label));
    });
    refill(this.legend, head, el("ul", {}, items), few ? null : el("p", { class: "quiet", text: `${entries.length} values` }));
  }

  #legendOn(context, x) {
    if (!this.key?.title || !this.key.entries.length) return;
    const { title, entries } = this.key;
    const kept = entries.length <= MANY ? entries : [0, 0.25, 0.5, 0.75, 1].map((share) => entries[Math.round(share * (entries.length - 1))]);
    Object.assign(context, { font: FONT, textAlign: "left", textBaseline: "middle", fillStyle: ink("text") });
    context.fillText(words(title), x, 18);
    kept.forEach(({ value, colour, mark }, i) => {
      context.fillStyle = colour;
      if (mark) context.fillText(mark, x + 2, 34 + 18 * i);
      else context.fillRect(x, 34 + 18 * i - 4, 14, 8);
      context.fillStyle = ink("text");
      context.fillText(shown(value), x + 20, 34 + 18 * i);
    });
  }

  download(kind) {
    if (kind === "csv") return save(`${this.name}.csv`, this.csv?.() ?? "", "text/csv");
    const top = 26;
    const [width, height] = [this.width + (this.key?.entries.length ? LEGEND : 0), this.height + top];
    const title = (context) => {
      Object.assign(context, { font: `600 13px system-ui, sans-serif`, textAlign: "left", textBaseline: "middle", fillStyle: ink("text") });
      context.fillText(this.heading.textContent, 8, 14);
    };
    if (kind === "svg") {
      const context = new SvgContext();
      title(context);
      context.translate(0, top);
      this.compose(context);
      this.#legendOn(context, this.width + 12);
      return save(`${this.name}.svg`, context.file(width, height, ink("ground")), "image/svg+xml");
    }
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.fillStyle = ink("ground");
    context.fillRect(0, 0, width, height);
    title(context);
    context.translate(0, top);
    this.compose(context);
    this.#legendOn(context, this.width + 12);
    canvas.toBlob((blob) => save(`${this.name}.png`, blob));
  }

  destroy() {
    this.observer.disconnect();
  }
}

/** Cuts a text in the middle, so that it is at most `most` pixels wide. */
export function shortened(context, text, most) {
  let kept = text.length;
  const cut = () => (kept < text.length ? `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}` : text);
  while (kept > 2 && context.measureText(cut()).width > most) kept -= 1;
  return cut();
}

/** A figure that one function draws: `draw(context, width, height)`. */
export class Sheet extends Figure {
  set(spec) {
    this.spec = spec;
    this.csv = spec.csv;
    this.area.setAttribute("aria-label", spec.summary ?? this.heading.textContent);
    if (spec.height && spec.height !== this.height) {
      this.height = spec.height;
      this.area.style.height = `${spec.height}px`;
    }
    this.frame();
  }

  frame() {
    this.width = this.area.clientWidth;
    if (!this.width || !this.spec) return;
    this.sheet = this.canvas(this.area, this.width, this.height, this.sheet);
    this.spec.draw(this.sheet.getContext("2d"), this.width, this.height);
    this.spec.framed?.(this.sheet, this.width, this.height);
  }

  compose(context) {
    this.spec.draw(context, this.width, this.height);
  }
}
