// Tables of the runs, with sorting and pages, and of the cells.
import { button, csv, el, refill, save, shown, table, tick, words } from "./dom.js";
import { labelFiles } from "./labels.js";
import { part, setState, state } from "./state.js";

const ROWS = 20; // runs per page
const CELLS = 200; // most cells shown

export class RunTable {
  constructor(app) {
    this.app = app;
    this.node = el("section", { class: "runs-table", "aria-label": "Table of runs" });
  }

  /** Shows a page of the runs; the highlighted ones, `lit`, come first on every page. */
  update(visible, lit) {
    const { columns, cellAxes } = this.app;
    const usual = ["name", "tags", ...cellAxes.slice(0, 12), "seed", "state", "plateau", "steps", "reason"];
    const heads = part("cols", usual).filter((name) => columns.includes(name));
    const choose = (name, on) => setState({ cols: on ? [...heads, name] : heads.filter((each) => each !== name) });
    const boxes = columns.map((name) => tick(words(name), heads.includes(name), (on) => choose(name, on), `column ${name}`));
    const chooser = el("details", { "data-key": "columns" }, el("summary", { text: "Columns" }), el("div", { class: "boxes", role: "group", "aria-label": "Columns of the table" }, boxes));
    const [by, down] = [state().sort?.replace("-", "") ?? "", state().sort?.startsWith("-")];
    const ordered = heads.includes(by) ? [...visible].sort((a, b) => (down ? -1 : 1) * compare(a[by], b[by])) : visible;
    const pages = Math.max(1, Math.ceil(ordered.length / ROWS));
    const page = Math.min(pages, Math.max(1, Number(state().page) || 1));
    const head = (name) => {
      const sorted = by === name ? (down ? "descending" : "ascending") : null;
      const press = () => setState({ sort: by !== name ? name : down ? null : `-${name}`, page: null });
      return el("th", { scope: "col", "aria-sort": sorted }, el("button", { type: "button", class: "plain", "data-key": `sort ${name}`, onclick: press, text: `${words(name)}${sorted ? (down ? " ↓" : " ↑") : ""}` }));
    };
    const listed = ordered.slice((page - 1) * ROWS, page * ROWS);
    const rows = [...lit, ...listed.filter((row) => !lit.includes(row))].map((row) => {
      const chosen = lit.includes(row);
      const press = () => setState(row.identity === state().with ? { with: null } : { run: chosen ? null : row.identity });
      const open = el("button", { type: "button", class: "plain", "data-key": `run ${row.identity}`, "aria-pressed": String(chosen), onclick: press, text: row.identity });
      return { attributes: { class: chosen ? "chosen" : null }, cells: [open, ...heads.map((name) => (name === "plateau" ? plateau(row) : row[name]))] };
    });
    const turn = el(
      "div",
      { class: "row" },
      button("Previous", () => setState({ page: String(page - 1) }), { disabled: page <= 1, class: "small" }),
      el("span", { class: "quiet", text: `page ${page} of ${pages}` }),
      button("Next", () => setState({ page: String(page + 1) }), { disabled: page >= pages, class: "small" }),
      button("CSV", () => save("runs.csv", csv(["identity", ...heads], visible.map((row) => [row.identity, ...heads.map((name) => row[name])])), "text/csv"), { class: "small", "aria-label": "Download the runs as CSV" }),
      ...labelFiles(this.app),
    );
    const caption = `${visible.length} runs${visible.length < this.app.rows.length ? ` of ${this.app.rows.length}` : ""}, one row per run`;
    refill(this.node, el("h3", { text: "Runs" }), chooser, table(caption, [el("th", { scope: "col", text: "run" }), ...heads.map(head)], rows), turn);
  }
}

/** The groups of the runs, by default the cells, with lower bounds where censored runs decide the median. */
export class CellTable {
  constructor(app) {
    this.app = app;
    this.node = el("section", { class: "cells-table", "aria-label": "Table of groups" });
  }

  update(visible, groups, lit) {
    const cells = summary(visible.filter((row) => row.state !== "training"), groups);
    this.node.hidden = !cells.some((cell) => cell.runs > 1) || !this.app.columns.includes("plateau");
    if (this.node.hidden) return refill(this.node);
    const same = (cell) => lit.some((row) => groups.every((name) => (row[name] ?? null) === cell[name]));
    const counts = ["runs", "censored", "failed"];
    const rows = cells.slice(0, CELLS).map((cell) => ({
      attributes: { class: same(cell) ? "chosen" : null },
      cells: [...groups.map((name) => cell[name]), plateau({ plateau: cell.plateau, censored: cell.bound }), cell.plateau_min, cell.plateau_max, ...counts.map((name) => cell[name])],
    }));
    const heads = [...groups.map(words), "median plateau (steps)", "smallest", "largest", ...counts];
    const caption = `${cells.length > CELLS ? `the first ${CELLS} of ` : ""}${cells.length} group${cells.length === 1 ? "" : "s"}; > marks a lower bound`;
    const file = () => save("cells.csv", csv(Object.keys(cells[0]), cells.map(Object.values)), "text/csv");
    const download = button("CSV", file, { class: "small", "aria-label": "Download the groups as CSV" });
    refill(this.node, el("h3", { text: `By ${groups.map(words).join(", ") || "nothing: all runs"}` }), table(caption, heads, rows), el("div", {}, download));
  }
}

/** Summarises the plateaus of each group, as `emergo study show` does: the median is a lower bound once half of the runs are censored. */
function summary(rows, groups) {
  const members = new Map();
  for (const row of rows) {
    const key = JSON.stringify(groups.map((name) => row[name] ?? null));
    if (members.has(key)) members.get(key).push(row);
    else members.set(key, [row]);
  }
  const cells = [...members.values()].map((runs) => {
    const known = runs.map((row) => row.plateau).filter(Number.isFinite).sort((a, b) => a - b);
    const middle = (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
    const censored = runs.filter((row) => row.censored).length;
    return {
      ...Object.fromEntries(groups.map((name) => [name, runs[0][name] ?? null])),
      ...{ runs: runs.length, plateau: known.length ? middle : null, bound: 2 * censored >= known.length },
      ...{ plateau_min: known[0] ?? null, plateau_max: known.at(-1) ?? null, censored, failed: runs.filter((row) => row.state === "failed").length },
    };
  });
  return cells.sort((a, b) => groups.map((name) => compare(a[name], b[name])).find(Boolean) ?? 0);
}

function plateau(row) {
  if (!Number.isFinite(row.plateau)) return null;
  return row.state === "censored" || row.censored ? `> ${shown(Math.round(row.plateau))}` : Math.round(row.plateau);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
