// A drawing context with the interface of a canvas that writes SVG.

const escaped = (value) => String(value).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
const near = (value) => Number(value.toFixed(2));
const STYLE = ["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline"];
const ANCHOR = { center: "middle", right: "end", end: "end" };
const SHIFT = { top: 0.8, hanging: 0.8, middle: 0.32, bottom: -0.2, ideographic: -0.2 };

export class SvgContext {
  parts = [];
  #matrix = [1, 0, 0, 1, 0, 0];
  #stack = [];
  #path = [];
  #dash = [];

  constructor() {
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px sans-serif", textAlign: "start", textBaseline: "alphabetic" });
  }

  save() {
    this.#stack.push([[...this.#matrix], [...this.#dash], STYLE.map((name) => this[name])]);
  }

  restore() {
    if (!this.#stack.length) return;
    const [matrix, dash, style] = this.#stack.pop();
    [this.#matrix, this.#dash] = [matrix, dash];
    STYLE.forEach((name, i) => (this[name] = style[i]));
  }

  #times(a, b, c, d, e, f) {
    const [A, B, C, D, E, F] = this.#matrix;
    this.#matrix = [A * a + C * b, B * a + D * b, A * c + C * d, B * c + D * d, A * e + C * f + E, B * e + D * f + F];
  }

  translate(x, y) {
    this.#times(1, 0, 0, 1, x, y);
  }

  rotate(angle) {
    this.#times(Math.cos(angle), Math.sin(angle), -Math.sin(angle), Math.cos(angle), 0, 0);
  }

  scale(x, y) {
    this.#times(x, 0, 0, y, 0, 0);
  }

  setLineDash(dash) {
    this.#dash = [...dash];
  }

  #at(x, y) {
    const [a, b, c, d, e, f] = this.#matrix;
    return `${near(a * x + c * y + e)} ${near(b * x + d * y + f)}`;
  }

  get #size() {
    return Math.hypot(this.#matrix[0], this.#matrix[1]);
  }

  beginPath() {
    this.#path = [];
  }

  moveTo(x, y) {
    this.#path.push(`M${this.#at(x, y)}`);
  }

  lineTo(x, y) {
    this.#path.push(`${this.#path.length ? "L" : "M"}${this.#at(x, y)}`);
  }

  closePath() {
    this.#path.push("Z");
  }

  rect(x, y, width, height) {
    this.#path.push(`M${this.#at(x, y)}L${this.#at(x + width, y)}L${this.#at(x + width, y + height)}L${this.#at(x, y + height)}Z`);
  }

  arc(x, y, radius) {
    const r = near(radius * this.#size);
    this.#path.push(`M${this.#at(x + radius, y)}A${r} ${r} 0 1 1 ${this.#at(x - radius, y)}A${r} ${r} 0 1 1 ${this.#at(x + radius, y)}Z`);
  }

  #draw(attributes) {
    if (this.#path.length) this.parts.push(`<path d="${this.#path.join("")}" opacity="${near(this.globalAlpha)}" ${attributes}/>`);
  }

  stroke() {
    const dash = this.#dash.length ? ` stroke-dasharray="${this.#dash.map((d) => near(d * this.#size)).join(" ")}"` : "";
    const width = near(this.lineWidth * this.#size);
    this.#draw(`fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${width}" stroke-linejoin="round"${dash}`);
  }

  fill() {
    this.#draw(`fill="${escaped(this.fillStyle)}"`);
  }

  fillRect(x, y, width, height) {
    const path = this.#path;
    this.#path = [];
    this.rect(x, y, width, height);
    this.fill();
    this.#path = path;
  }

  fillText(text, x, y) {
    this.#text(text, x, y, `fill="${escaped(this.fillStyle)}"`);
  }

  strokeText(text, x, y) {
    this.#text(text, x, y, `fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${near(this.lineWidth * this.#size)}" stroke-linejoin="round"`);
  }

  #text(text, x, y, paint) {
    const [, weight, size] = /(?:(bold|[1-9]00)\s+)?([\d.]+)px/.exec(this.font) ?? [null, null, "12"];
    const pixels = Number(size) * this.#size;
    const angle = near((Math.atan2(this.#matrix[1], this.#matrix[0]) * 180) / Math.PI);
    const [px, py] = this.#at(x, y).split(" ");
    const turned = angle ? ` transform="rotate(${angle} ${px} ${py})"` : "";
    const style = `font-size="${near(pixels)}" font-weight="${weight ?? "normal"}" text-anchor="${ANCHOR[this.textAlign] ?? "start"}"`;
    const shift = `dy="${near((SHIFT[this.textBaseline] ?? 0) * pixels)}"`;
    this.parts.push(`<text x="${px}" y="${py}" ${shift} ${style} ${paint}${turned}>${escaped(text)}</text>`);
  }

  measureText(text) {
    return { width: 0.55 * Number(/([\d.]+)px/.exec(this.font)?.[1] ?? 12) * text.length };
  }

  clip() {}
  clearRect() {}

  /** Returns the drawing as the content of a file. */
  file(width, height, ground) {
    const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="Helvetica, Arial, sans-serif">`;
    return `${head}<rect width="100%" height="100%" fill="${escaped(ground)}"/>${this.parts.join("\n")}</svg>\n`;
  }
}

/** Runs `draw` on a canvas context and records all calls in `recorder`. */
export function recorded(context, recorder, draw) {
  const names = Object.getOwnPropertyNames(SvgContext.prototype).filter((name) => name !== "constructor" && typeof context[name] === "function");
  for (const name of names) {
    context[name] = (...values) => {
      for (const style of STYLE) recorder[style] = context[style];
      recorder[name](...values);
      return CanvasRenderingContext2D.prototype[name].apply(context, values);
    };
  }
  try {
    draw();
  } finally {
    for (const name of names) delete context[name];
  }
}
