// Descriptions of runs in words.
import { el, shown, table, words } from "./dom.js";

export function describeRun(app, row) {
  const values = app.cellAxes.filter((axis) => row[axis] !== undefined && row[axis] !== null).map((axis) => `${words(axis)} ${shown(row[axis])}`);
  if (row.seed !== undefined && row.seed !== null) values.push(`seed ${shown(row.seed)}`);
  return `${title(row)}: ${[...values.slice(0, 10), outcome(row)].filter(Boolean).join(", ")}`;
}

/** Returns the name that the user gave to a run, with its identity. */
export function title(row) {
  return `${row.name ? `${row.name}, ` : ""}${row.identity}${row.tags ? ` (${row.tags})` : ""}`;
}

export function outcome(row) {
  if (row.state === "training") return `in training, step ${shown(row.steps)}, loss ${shown(row.loss)}`;
  if (row.state === "failed") return `failed${row.failed_step ? ` at step ${row.failed_step}` : ""}${row.reason ? ` (${row.reason})` : ""}`;
  if (row.plateau === null || row.plateau === undefined) return row.state ?? "";
  if (row.state === "censored" || row.censored) return `plateau longer than ${shown(Math.round(row.plateau))} steps (censored)`;
  return `plateau ${shown(Math.round(row.plateau))} steps`;
}

function flat(value, prefix = "") {
  const nested = value !== null && typeof value === "object" && !Array.isArray(value);
  return nested ? Object.entries(value).flatMap(([name, inner]) => flat(inner, prefix ? `${prefix}.${name}` : name)) : [[prefix, value]];
}

/** Shows the config of a run, one row per field. */
export function config(described) {
  const rows = flat(described).filter(([, value]) => value !== null && value !== undefined);
  return el("details", { "data-key": "config" }, el("summary", { text: `Config (${rows.length} fields)` }), table("Config of the run", ["field", "value"], rows, { class: "config" }));
}

/** Creates a table of the fields in which two objects differ. */
export function differences(caption, objects, heads, without = []) {
  const [one, two] = objects.map((object) => new Map(flat(Object.fromEntries(Object.entries(object).filter(([name]) => !["identity", ...without].includes(name))))));
  const names = [...new Set([...one.keys(), ...two.keys()])].filter((name) => shown(one.get(name)) !== shown(two.get(name)));
  if (!names.length) return el("p", { class: "quiet", text: `${caption}: none.` });
  return table(caption, ["field", ...heads], names.map((name) => [words(name), shown(one.get(name)), shown(two.get(name))]));
}
