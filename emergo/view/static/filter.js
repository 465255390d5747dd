// The filter: some values of each axis, or a range if an axis has many values.
import { button, el, shown, tick, words } from "./dom.js";
import { setState } from "./state.js";

const MANY = 24; // axes with more values are filtered by a range

/** Returns true if a row passes. A filter has a list of values, or {low, high}, for each of its columns. */
export function keeps(filter, row) {
  for (const [name, wanted] of Object.entries(filter)) {
    const value = row[name] ?? null;
    if (Array.isArray(wanted)) {
      if (!wanted.includes(value)) return false;
    } else if (value === null || value < wanted.low || value > wanted.high) return false;
  }
  return true;
}

/** Turns the filter into lists of values for the server. */
export function asLists(filter, rows) {
  const lists = Object.entries(filter).map(([name, wanted]) => {
    if (Array.isArray(wanted)) return [name, wanted];
    return [name, [...new Set(rows.map((row) => row[name]).filter((value) => value !== null && value >= wanted.low && value <= wanted.high))]];
  });
  return Object.fromEntries(lists);
}

export function change(filter, name, wanted) {
  const next = { ...filter };
  if (wanted === null) delete next[name];
  else next[name] = wanted;
  setState({ filter: Object.keys(next).length ? next : null, page: null });
}

/** Builds a control for every axis, and for seed and state if they differ. */
export function filterControls(app, filter) {
  const names = [...new Set([...app.cellAxes, "seed", "state", ...Object.keys(filter)])];
  const groups = names.map((name) => control(app, filter, name)).filter(Boolean);
  if (Object.keys(filter).length) groups.push(button("Clear filter", () => setState({ filter: null, page: null })));
  return groups;
}

function control(app, filter, name) {
  const values = [...app.distinct(name)].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  if (values.length < 2) return null;
  const wanted = filter[name];
  const numbers = values.filter((value) => typeof value === "number");
  const kept = !wanted ? "" : Array.isArray(wanted) ? ` (${wanted.length} of ${values.length})` : ` (${shown(wanted.low)} to ${shown(wanted.high)})`;
  const inside = values.length > MANY && numbers.length > 1 ? range(filter, name, numbers, wanted) : boxes(filter, name, values.slice(0, 200), wanted);
  return el("details", { "data-key": `filter ${name}`, open: Boolean(wanted) }, el("summary", { "data-key": `summary ${name}`, text: `${words(name)}${kept}` }), inside);
}

function boxes(filter, name, values, wanted) {
  const chosen = Array.isArray(wanted) ? wanted : values;
  const set = (value, on) => {
    const next = values.filter((each) => (each === value ? on : chosen.includes(each)));
    change(filter, name, next.length === values.length ? null : next);
  };
  return el("div", { class: "boxes", role: "group", "aria-label": words(name) }, values.map((value) => tick(shown(value), chosen.includes(value), (on) => set(value, on), `${name}=${value}`)));
}

function range(filter, name, numbers, wanted) {
  const ends = { low: numbers[0], high: numbers[numbers.length - 1], ...(wanted && !Array.isArray(wanted) ? wanted : {}) };
  const box = (end, label) =>
    el("label", { class: "field" }, el("span", { text: label }), el("input", {
      type: "number",
      step: "any",
      value: ends[end],
      "data-key": `${name} ${end}`,
      onchange: (event) => Number.isFinite(event.target.valueAsNumber) && change(filter, name, { ...ends, [end]: event.target.valueAsNumber }),
    }));
  return el("div", { class: "row" }, box("low", "from"), box("high", "to"));
}
