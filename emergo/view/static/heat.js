// Heat maps.
import { ink } from "./colour.js";
import { shown } from "./dom.js";
import { FONT } from "./figure.js";

/** Draws a heat map, with rows from the top and columns from the left. */
export function heat(context, width, height, { values, rows, columns, colour, below, mark, write }) {
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
