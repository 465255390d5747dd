// The filter: values or a range of each column, and a text.
import { button, el, shown, tick, words } from "./dom.js";
import { setState } from "./state.js";

const MANY = 24; // columns with more values are filtered by a range
const FIND = ""; // the name of the text in a filter
const FOUND = 2000; // most runs found by a text that fit into a request
const TESTS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };
const texts = new WeakMap(); // the values of a row as one text

/** Returns true if a row passes. A filter has a list of values, or {low, high}, for each of its columns. */
export function keeps(filter, row) {
  for (const [name, wanted] of Object.entries(filter)) {
    const value = row[name] ?? null;
    if (name === FIND) {
      if (!parsed(wanted).every((test) => test(row))) return false;
    } else if (Array.isArray(wanted)) {
      if (!wanted.includes(value)) return false;
    } else if (value === null || value < wanted.low || value > wanted.high) return false;
  }
  return true;
}

let last = { text: null, tests: [] };

/** Turns a text into tests of a row: each word is a comparison such as `dim>=16`, or occurs in one of the values. */
function parsed(text) {
  if (last.text !== text) last = { text, tests: String(text).toLowerCase().split(/\s+/).filter(Boolean).map(test) };
  return last.tests;
}

function test(word) {
  const [, name, sign, wanted] = /^([^<>=!]+)(<=|>=|!=|<|>|=)(.+)$/.exec(word) ?? [];
  if (!sign) return (row) => written(row).includes(word);
  const number = Number(wanted);
  return (row) => {
    const value = row[name] ?? null;
    if (typeof value === "number" && !Number.isNaN(number)) return TESTS[sign](value, number);
    return value !== null && TESTS[sign](String(value).toLowerCase(), wanted);
  };
}

function written(row) {
  if (!texts.has(row)) texts.set(row, Object.values(row).filter((value) => value !== null && typeof value !== "object").join("\n").toLowerCase());
  return texts.get(row);
}

/** Returns the filter as the server understands it: a text becomes the runs that it finds. */
export function forServer(filter, rows) {
  const { [FIND]: text, ...where } = filter;
  if (!text) return where;
  const identity = rows.filter((row) => keeps(filter, row)).map((row) => row.identity);
  if (identity.length > FOUND) throw new Error(`The text finds ${identity.length} runs; a law of runs found by a text can have ${FOUND}.`);
  return { ...where, identity };
}

export function change(filter, name, wanted) {
  const next = { ...filter };
  if (wanted === null) delete next[name];
  else next[name] = wanted;
  setState({ filter: Object.keys(next).length ? next : null, page: null });
}

/** Builds the field for a text, and a control for every axis, and for outcomes that differ. */
export function filterControls(app, filter) {
  const names = [...new Set([...app.cellAxes, "seed", "state", "plateau", "tags", ...Object.keys(filter)])].filter((name) => name !== FIND);
  const find = el("input", { type: "search", value: filter[FIND] ?? "", placeholder: "dim>=16 failed", "data-key": "find", onchange: (event) => change(filter, FIND, event.target.value.trim() || null) });
  const kept = app.rows.filter((row) => keeps(filter, row)).length;
  return [
    el("h3", { text: "Filter" }),
    el("p", { class: "quiet", role: "status", text: `${kept} of ${app.rows.length} runs` }),
    el("label", { class: "field" }, el("span", { text: "Find text or compare a column" }), find),
    ...names.map((name) => control(app, filter, name)).filter(Boolean),
    Object.keys(filter).length ? button("Clear filter", () => setState({ filter: null, page: null })) : null,
  ];
}

function control(app, filter, name) {
  const values = [...app.distinct(name)].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  if (values.length < 2) return null;
  const wanted = filter[name];
  const numbers = values.filter((value) => typeof value === "number");
  const kept = !wanted ? "" : Array.isArray(wanted) ? ` (${wanted.length} of ${values.length})` : ` (${shown(wanted.low)} to ${shown(wanted.high)})`;
  const inside = [
    values.length <= MANY || numbers.length < 2 ? boxes(filter, name, values.slice(0, 200), wanted) : null,
    numbers.length > 2 ? range(filter, name, numbers, wanted) : null,
  ];
  return el("details", { "data-key": `filter ${name}`, open: Boolean(wanted) }, el("summary", { "data-key": `summary ${name}`, text: `${words(name)}${kept}` }), inside);
}

function boxes(filter, name, values, wanted) {
  const passes = (value) => !wanted || keeps({ [name]: wanted }, { [name]: value });
  const set = (value, on) => {
    const next = values.filter((each) => (each === value ? on : passes(each)));
    change(filter, name, next.length === values.length ? null : next);
  };
  return el("div", { class: "boxes", role: "group", "aria-label": words(name) }, values.map((value) => tick(shown(value), passes(value), (on) => set(value, on), `${name}=${value}`)));
}

function range(filter, name, numbers, wanted) {
  const ends = { low: numbers[0], high: numbers.at(-1), ...(wanted && !Array.isArray(wanted) ? wanted : {}) };
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
