// Descriptions of runs in words.
import { el, shown, table, words } from "./dom.js";

export function describeRun(app, row) {
  const values = app.cellAxes.filter((axis) => row[axis] !== undefined && row[axis] !== null).map((axis) => `${words(axis)} ${shown(row[axis])}`);
  if (row.seed !== undefined && row.seed !== null) values.push(`seed ${shown(row.seed)}`);
  return `${row.identity}: ${[...values.slice(0, 10), outcome(row)].filter(Boolean).join(", ")}`;
}

export function outcome(row) {
  if (row.state === "failed") return `failed${row.failed_step ? ` at step ${row.failed_step}` : ""}${row.reason ? ` (${row.reason})` : ""}`;
  if (row.plateau === null || row.plateau === undefined) return row.state ?? "";
  if (row.state === "censored" || row.censored) return `plateau longer than ${shown(Math.round(row.plateau))} steps (censored)`;
  return `plateau ${shown(Math.round(row.plateau))} steps`;
}

/** Shows the config of a run, one row per field; without a config, the columns of the table. */
export function config(app, row, described = null) {
  const flat = (value, prefix = "") =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(value).flatMap(([name, inner]) => flat(inner, prefix ? `${prefix}.${name}` : name))
      : [[prefix, value]];
  const given = described && Object.keys(described).length ? flat(described) : Object.entries({ ...app.constants, ...row });
  const rows = given.filter(([name, value]) => value !== null && value !== undefined && name !== "identity");
  return el("details", { "data-key": "config" }, el("summary", { text: `Config (${rows.length} fields)` }), table("Config of the run", ["field", "value"], rows.map(([name, value]) => [name, shown(value)]), { class: "config" }));
}
