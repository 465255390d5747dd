// Tables of the runs, with sorting and pages, and of the cells.
import { button, csv, el, refill, save, shown, table, words } from "./dom.js";
import { keeps } from "./filter.js";
import { setState, state } from "./state.js";

const ROWS = 20; // runs per page
const CELLS = 200; // most cells shown

export class RunTable {
  constructor(app) {
    this.app = app;
    this.node = el("section", { class: "runs-table", "aria-label": "Table of runs" });
  }

  update(visible) {
    const { columns } = this.app;
    const last = ["seed", "state", "plateau", "steps", "reason"].filter((name) => columns.includes(name));
    const heads = [...this.app.cellAxes.filter((name) => columns.includes(name)).slice(0, 12), ...last];
    const [by, down] = [state().sort?.replace("-", "") ?? "", state().sort?.startsWith("-")];
    const ordered = heads.includes(by) ? [...visible].sort((a, b) => (down ? -1 : 1) * compare(a[by], b[by])) : visible;
    const pages = Math.max(1, Math.ceil(ordered.length / ROWS));
    const page = Math.min(pages, Math.max(1, Number(state().page) || 1));
    const head = (name) => {
      const sorted = by === name ? (down ? "descending" : "ascending") : null;
      const press = () => setState({ sort: by !== name ? name : down ? null : `-${name}`, page: null });
      return el("th", { scope: "col", "aria-sort": sorted }, el("button", { type: "button", class: "plain", "data-key": `sort ${name}`, onclick: press, text: `${words(name)}${sorted ? (down ? " ↓" : " ↑") : ""}` }));
    };
    const rows = ordered.slice((page - 1) * ROWS, page * ROWS).map((row) => {
      const chosen = row.identity === state().run;
      const open = el("button", { type: "button", class: "plain", "data-key": `run ${row.identity}`, "aria-pressed": String(chosen), onclick: () => setState({ run: chosen ? null : row.identity }), text: row.identity });
      return { attributes: { class: chosen ? "chosen" : null }, cells: [open, ...heads.map((name) => (name === "plateau" ? plateau(row) : row[name]))] };
    });
    const turn = el(
      "div",
      { class: "row" },
      button("Previous", () => setState({ page: String(page - 1) }), { disabled: page <= 1, class: "small" }),
      el("span", { class: "quiet", text: `page ${page} of ${pages}` }),
      button("Next", () => setState({ page: String(page + 1) }), { disabled: page >= pages, class: "small" }),
      button("CSV", () => save("runs.csv", csv(["identity", ...heads], visible.map((row) => [row.identity, ...heads.map((name) => row[name])])), "text/csv"), { class: "small", "aria-label": "Download the runs as CSV" }),
    );
    const caption = `${visible.length} runs${visible.length < this.app.rows.length ? ` of ${this.app.rows.length}` : ""}, one row per run`;
    refill(this.node, el("h3", { text: "Runs" }), table(caption, [el("th", { scope: "col", text: "run" }), ...heads.map(head)], rows), turn);
  }
}

/** The cells of a set: the server's summary, with lower bounds where censored runs decide the median. */
export class CellTable {
  constructor(app) {
    this.app = app;
    this.node = el("section", { class: "cells-table", "aria-label": "Table of cells" });
  }

  async update(filter) {
    const { data, set } = this.app;
    const asked = (this.asked = JSON.stringify([set.key, set.version, filter]));
    const cells = await data.cells(set.key).catch(() => []);
    if (asked !== this.asked) return;
    const axes = this.app.cellAxes.slice(0, 12);
    const counts = ["runs", "censored", "failed"];
    const wanted = Object.fromEntries(Object.entries(filter).filter(([name]) => axes.includes(name)));
    const kept = cells.filter((cell) => keeps(wanted, cell));
    this.node.hidden = !kept.some((cell) => cell.runs > 1);
    const median = (cell) => plateau({ plateau: cell.plateau, censored: cell.bound });
    const rows = kept.slice(0, CELLS).map((cell) => [...axes.map((axis) => cell[axis]), median(cell), cell.plateau_min, cell.plateau_max, ...counts.map((name) => cell[name])]);
    const heads = [...axes.map(words), "median plateau (steps)", "smallest", "largest", ...counts];
    const part = kept.length > CELLS ? `the first ${CELLS} of ` : "";
    const caption = `${part}${kept.length} cells; > marks a lower bound. Filters by seed and state do not apply.`;
    const file = () => save("cells.csv", csv(Object.keys(kept[0]), kept.map(Object.values)), "text/csv");
    const download = button("CSV", file, { class: "small", "aria-label": "Download the cells as CSV" });
    refill(this.node, el("h3", { text: "Cells" }), table(caption, heads, rows), download);
  }
}

function plateau(row) {
  if (!Number.isFinite(row.plateau)) return null;
  return row.state === "censored" || row.censored ? `> ${shown(Math.round(row.plateau))}` : Math.round(row.plateau);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
