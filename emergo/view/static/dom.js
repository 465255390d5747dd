// Elements of the page. Text from a store is always set as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (["value", "checked", "disabled", "open", "indeterminate"].includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let named = 0;

/** Creates a labelled select. Options are values or [value, text]. */
export function choice(label, options, value, change, key) {
  const id = `c${++named}`;
  const items = options.map((option) => {
    const [chosen, words] = Array.isArray(option) ? option : [option, option];
    return el("option", { value: chosen, text: words });
  });
  const select = el("select", { id, "data-key": key ?? label, onchange: (event) => change(event.target.value) }, items);
  select.value = value;
  return el("div", { class: "field" }, el("label", { for: id, text: label }), select);
}

export function tick(label, checked, change, key) {
  const box = el("input", { type: "checkbox", checked, "data-key": key ?? label, onchange: (event) => change(event.target.checked) });
  return el("label", { class: "tick" }, box, el("span", { text: label }));
}

export function button(words, press, attributes = {}) {
  return el("button", { type: "button", "data-key": words, onclick: press, ...attributes, text: words });
}

/** Creates a sample of a colour, or a coloured mark. */
export function swatch(colour, mark) {
  const box = el("span", { class: mark ? "mark" : "swatch", "aria-hidden": "true", text: mark });
  box.style[mark ? "color" : "background"] = colour;
  return box;
}

const wide = matchMedia("(min-width: 821px)");
wide.addEventListener("change", () => document.querySelectorAll("details.panel").forEach((node) => (node.open = wide.matches)));

/** Creates the controls of a view, which narrow windows show on demand. Returns the element and the place for its content. */
export function panel(label) {
  const body = el("div", { class: "controls", role: "group", "aria-label": label });
  return [el("details", { class: "panel", open: wide.matches }, el("summary", {}, el("h2", { text: label })), body), body];
}

/** Replaces the children and restores the focus and open details. */
export function refill(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const open = new Set([...element.querySelectorAll("details[open]")].map((details) => details.dataset.key));
  element.replaceChildren(...children.flat().filter(Boolean));
  for (const details of element.querySelectorAll("details")) if (open.has(details.dataset.key)) details.open = true;
  if (key) [...element.querySelectorAll("[data-key]")].find((child) => child.dataset.key === key)?.focus();
}

/** Creates a table with a caption. Cells are texts, numbers (right-aligned) or elements. */
export function table(caption, heads, rows, attributes = {}) {
  const number = (value) => typeof value === "number" || /^> [\d.e-]+$/.test(value); // or a lower bound
  const cell = (value) => (value instanceof Node ? el("td", {}, value) : el("td", { class: number(value) ? "number" : null, text: shown(value) }));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      attributes,
      el("caption", { class: "quiet", text: caption }),
      el("thead", {}, el("tr", {}, heads.map((head) => (head instanceof Node ? head : el("th", { scope: "col", text: head }))))),
      el("tbody", {}, rows.map((row) => el("tr", row.attributes ?? {}, (row.cells ?? row).map(cell)))),
    ),
  );
}

/** Formats a value for a cell. */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? Number(value.toPrecision(3)).toExponential().replace("e+", "e") : String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [most, unit, size] of [[90, "s", 1], [5400, "min", 60], [129600, "h", 3600]]) {
    if (seconds < most) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds / 86400)} d`;
}

const COLUMNS = {
  plateau: "plateau (steps)",
  plateau_low: "plateau, low (steps)",
  plateau_high: "plateau, high (steps)",
  train_loss: "training loss",
  kl_teacher: "KL from the teacher (nats)",
  kl_references: "KL from references (nats)",
  teacher_loss: "loss of the teacher",
};

const CURVES = {
  entropy: "entropy of attention (nats)",
  attention: "attention on the relevant tokens",
  attention_by_lag: "attention by lag",
  largest: "largest weight",
  previous: "weight on the previous token",
  same: "weight on the same token elsewhere",
  score_scale: "standard deviation of scores",
  previous_token_head: "previous-token score",
  duplicate_token_head: "duplicate-token score",
  induction_head: "induction score",
  first_token_head: "first-token score",
  agreement_query_key: "gradient agreement, queries and keys",
  agreement_value_output: "gradient agreement, values and outputs",
  gradient_query_key: "gradient norm, queries and keys",
  gradient_value_output: "gradient norm, values and outputs",
};

/** Returns the label of a column. */
export function words(name) {
  return COLUMNS[name] ?? name.replaceAll("_", " ");
}

/** Returns the label of a curve. A column may have the same name and another meaning, such as the kind of attention. */
export function curveWords(name) {
  return CURVES[name] ?? words(name);
}

export function save(name, content, kind) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  el("a", { href: address, download: name.replaceAll(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Calls `act` after the current frame is on the screen. */
export function afterFrame(act) {
  requestAnimationFrame(() => requestAnimationFrame(() => act()));
}

/** Formats rows as CSV; text that a spreadsheet would run as a formula is quoted. */
export function csv(heads, rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(String(value)) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${[heads, ...rows].map((row) => row.map(cell).join(",")).join("\n")}\n`;
}
