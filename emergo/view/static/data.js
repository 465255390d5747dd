// Data sources: the server, or the content of an exported file.

const BATCH = 250; // curves per request
const AT_ONCE = 3; // parallel requests

async function ask(path, parameters = {}) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`);
  if (answer.ok) return answer;
  const why = answer.headers.get("content-type")?.includes("json") ? (await answer.json()).error : await answer.text();
  throw new Error(why || `the server answered ${answer.status}`);
}

/** Reorders items so that every prefix is spread over the whole list. */
export function spread(items) {
  const count = items.length;
  let stride = Math.max(1, Math.round(count * 0.618));
  const common = (a, b) => (b ? common(b, a % b) : a);
  while (common(count, stride) > 1) stride += 1;
  return items.map((_, i) => items[(i * stride) % count]);
}

class Server {
  live = true;
  #curves = new Map();

  async index() {
    return (await ask("index")).json();
  }

  async table(set) {
    return (await ask("runs", { set })).json();
  }

  async run(set, run) {
    return (await ask("run", { set, run })).json();
  }

  async stages(set, run) {
    return (await ask("stages", { set, run })).json();
  }

  /** `learned` is what counts as learned in a log: a metric, and the number below or above which it is. */
  async forecast(set, run, learned = {}) {
    return (await ask("forecast", { set, run, ...learned })).json();
  }

  async law(set, y, x, where) {
    return (await ask("law", { set, y, x: JSON.stringify(x), where: JSON.stringify(where) })).json();
  }

  async status() {
    return (await ask("live")).json();
  }

  picture(set) {
    return `api/picture?${new URLSearchParams({ set })}`;
  }

  /** Passes curves by identity to `arrived`: cached ones at once, the others in batches. Stops if `ended()` is true. */
  async curves(set, name, runs, options, arrived, ended = () => false) {
    const key = JSON.stringify([set, name, options]);
    if (!this.#curves.has(key)) {
      if (this.#curves.size > 6) this.#curves.delete(this.#curves.keys().next().value);
      this.#curves.set(key, new Map());
    }
    const held = this.#curves.get(key);
    const known = spread(runs.filter((run) => held.has(run)));
    if (known.length) arrived(new Map(known.map((run) => [run, held.get(run)])));
    const missing = spread(runs.filter((run) => !held.has(run)));
    const batches = [];
    for (let i = 0; i < missing.length; i += BATCH) batches.push(missing.slice(i, i + BATCH));
    const worker = async () => {
      while (batches.length && !ended()) {
        const batch = batches.shift();
        const answer = await ask("curves", { set, name, ...options, runs: batch.join(",") });
        const curves = unpack(await answer.arrayBuffer());
        const fresh = new Map(batch.map((run, i) => [run, curves[i]]));
        for (const [run, curve] of fresh) held.set(run, curve);
        if (!ended()) arrived(fresh);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  }
}

function unpack(buffer) {
  const count = new DataView(buffer).getUint32(0, true);
  const lengths = new Uint32Array(buffer, 4, count);
  const total = lengths.reduce((sum, n) => sum + n, 0);
  const numbers = new Float32Array(buffer, 4 + 4 * count, 2 * total);
  const curves = [];
  let start = 0;
  for (const length of lengths) {
    curves.push([numbers.subarray(start, start + length), numbers.subarray(total + start, total + start + length)]);
    start += length;
  }
  return curves;
}

/** An exported file: gives the same answers from its own content. */
class Embedded {
  live = false;

  constructor(content) {
    this.content = content;
  }

  static async open(element) {
    const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Embedded(await new Response(text).json());
  }

  async index() {
    return this.content;
  }

  async table(set) {
    return this.content.data[set].table;
  }

  #read(set, run) {
    const data = this.content.data[set];
    const [number, columns] = data.curves[run] ?? [null, {}];
    const numbers = (text) => Float32Array.from(text.split(","), (word) => (word === "" ? NaN : Number(word)));
    return { steps: number === null ? new Float32Array() : numbers(data.steps[number]), columns, numbers };
  }

  async run(set, run) {
    const { steps, columns, numbers } = this.#read(set, run);
    const families = this.content.sets.find((each) => each.key === set).curves;
    const held = Object.entries(columns).map(([name, text]) => [name, [...numbers(text)]]);
    const single = held.filter(([name]) => name in families).map(([name, values]) => [name, [[...steps], values]]);
    const all = held.filter(([name]) => !(name in families));
    const rows = [...steps.keys()].filter((i) => !all.length || all.some(([, values]) => Number.isFinite(values[i])));
    const maps = all.map(([name, values]) => [name, rows.map((i) => values[i])]);
    const { configs, classes } = this.content.data[set];
    const shared = { identity: run, config: configs[run] ?? {}, classes: classes[run] ?? [], steps: rows.map((i) => steps[i]), evaluations: steps.length };
    return { ...shared, curves: Object.fromEntries(single), maps: Object.fromEntries(maps) };
  }

  async stages(set, run) {
    return this.content.data[set].stages[run] ?? { curve: null, drops: [], why: "this file does not contain stages of this run" };
  }

  async forecast(set, run) {
    return this.content.data[set].forecasts[run] ?? { moments: [], why: "this file does not contain forecasts of this run; open the folder with emergo view" };
  }

  async law(set, y, x, where) {
    const law = this.content.data[set].laws[JSON.stringify([y, x, where])];
    if (!law) throw new Error("This file does not contain a law of these axes and runs. Open the folder with emergo view to fit it.");
    if (law.error) throw new Error(law.error);
    return law;
  }

  async status() {
    return { status: this.content.status, versions: {} };
  }

  picture() {
    return null;
  }

  async curves(set, name, runs, options, arrived) {
    const curves = spread(runs).map((run) => {
      const { steps, columns, numbers } = this.#read(set, run);
      const members = name in columns ? [name] : Object.keys(columns).filter((column) => column.replace(/(_\d+)+$/, "") === name);
      const values = members.map((member) => numbers(columns[member]));
      const y = steps.map((_, i) => values.reduce((most, each) => (Number.isNaN(most) || each[i] > most ? each[i] : most), NaN));
      return [run, members.length ? finite(steps, y) : [new Float32Array(), new Float32Array()]];
    });
    arrived(new Map(curves));
  }
}

function finite(x, y) {
  const kept = [...y.keys()].filter((i) => Number.isFinite(y[i]));
  return [Float32Array.from(kept, (i) => x[i]), Float32Array.from(kept, (i) => y[i])];
}

export async function openData() {
  const element = document.getElementById("data");
  return element ? Embedded.open(element) : new Server();
}
