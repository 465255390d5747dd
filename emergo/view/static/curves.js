// The loaded curves, with their ranges and the median of each cell, which are cached.

const BAND = [0.25, 0.75]; // quantiles over the seeds of a cell
const known = new WeakMap(); // ranges of curves by kind of axes; curves outlive filters

export class Curves {
  runs = new Map(); // by identity, in the order of arrival: {run, row, x, y}
  #cells = new Map();
  #reach = new Map();

  constructor(rows, axes) {
    this.rows = new Map(rows.map((row) => [row.identity, row]));
    this.axes = axes;
  }

  /** Adds curves by identity and returns those that are not empty. */
  add(curves) {
    const fresh = [];
    for (const [run, [x, y]] of curves) if (x.length) fresh.push({ run, row: this.rows.get(run), x, y });
    for (const each of fresh) this.runs.set(each.run, each);
    this.#cells.clear();
    this.#reach.clear();
    return fresh;
  }

  /** Returns the range of some or all curves that the axes can show: [x, x, y, y]. */
  reach(log, curves = null) {
    const kind = Number(log.x) + 2 * Number(log.y);
    if (!curves && this.#reach.has(kind)) return this.#reach.get(kind);
    const most = [Infinity, -Infinity, Infinity, -Infinity];
    for (const curve of curves ?? this.runs.values()) {
      let reached = known.get(curve.y);
      if (!reached) known.set(curve.y, (reached = []));
      const [left, right, low, high] = (reached[kind] ??= ends(curve, log));
      if (left < most[0]) most[0] = left;
      if (right > most[1]) most[1] = right;
      if (low < most[2]) most[2] = low;
      if (high > most[3]) most[3] = high;
    }
    if (!curves) this.#reach.set(kind, most);
    return most;
  }

  /** Returns median and quantiles of each cell on common steps. A finished run keeps its last value. */
  cells(log) {
    if (!this.#cells.has(log)) {
      const groups = new Map();
      for (const curve of this.runs.values()) {
        const cell = JSON.stringify(this.axes.map((axis) => curve.row[axis]));
        if (groups.has(cell)) groups.get(cell).push(curve);
        else groups.set(cell, [curve]);
      }
      const points = groups.size > 200 ? 48 : 140;
      this.#cells.set(log, [...groups.values()].map((curves) => median(curves, log, points)));
    }
    return this.#cells.get(log);
  }

  /** Returns the extreme values of each band that the axes can show. */
  heights(log) {
    return this.cells(log.x).flatMap(({ x, low, high }) => [ends({ x, y: low }, log)[2], ends({ x, y: high }, log)[3]]);
  }
}

function ends({ x, y }, log) {
  const found = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < x.length; i += 1) {
    if ((log.y && !(y[i] > 0)) || (log.x && !(x[i] > 0))) continue;
    if (x[i] < found[0]) found[0] = x[i];
    if (x[i] > found[1]) found[1] = x[i];
    if (y[i] < found[2]) found[2] = y[i];
    if (y[i] > found[3]) found[3] = y[i];
  }
  return found;
}

function median(curves, log, points) {
  let [first, last] = [Infinity, -Infinity];
  for (const { x } of curves) {
    first = Math.min(first, log && x[0] === 0 && x.length > 1 ? x[1] : x[0]);
    last = Math.max(last, x[x.length - 1]);
  }
  const start = log ? Math.max(first, 1e-9) : first;
  const steps = new Float64Array(points);
  for (let i = 0; i < points; i += 1) {
    const share = i / (points - 1);
    steps[i] = log ? start * (last / start) ** share : start + (last - start) * share;
  }
  const values = new Float64Array(points * curves.length); // all runs at the first step, then at the second, ...
  for (let run = 0; run < curves.length; run += 1) resample(curves[run], steps, values, run, curves.length);
  const [middle, low, high] = [new Float64Array(points), new Float64Array(points), new Float64Array(points)];
  for (let i = 0; i < points; i += 1) {
    const from = i * curves.length;
    const to = from + curves.length;
    sort(values, from, to);
    middle[i] = quantile(values, from, to, 0.5);
    low[i] = quantile(values, from, to, BAND[0]);
    high[i] = quantile(values, from, to, BAND[1]);
  }
  return { row: curves[0].row, runs: curves.length, x: steps, y: middle, low, high };
}

/** Interpolates a curve at some steps and writes to every `stride`-th place of `values`. */
function resample({ x, y }, steps, values, offset, stride) {
  const last = x.length - 1;
  for (let i = 0, j = 0; i < steps.length; i += 1) {
    while (j < last && x[j + 1] < steps[i]) j += 1;
    const inside = steps[i] > x[0] && j < last;
    values[offset + i * stride] = inside ? y[j] + ((steps[i] - x[j]) / (x[j + 1] - x[j])) * (y[j + 1] - y[j]) : steps[i] > x[0] ? y[last] : y[0];
  }
}

/** Sorts a part of `values`; for few values insertion sort is faster than the browser's sort. */
function sort(values, from, to) {
  if (to - from > 40) return values.subarray(from, to).sort();
  for (let i = from + 1; i < to; i += 1) {
    const value = values[i];
    let j = i;
    for (; j > from && values[j - 1] > value; j -= 1) values[j] = values[j - 1];
    values[j] = value;
  }
}

function quantile(sorted, from, to, share) {
  const place = from + share * (to - from - 1);
  const left = Math.floor(place);
  return left + 1 < to ? sorted[left] + (place - left) * (sorted[left + 1] - sorted[left]) : sorted[left];
}
