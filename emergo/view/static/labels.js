// Names and tags that the user gives to runs. The explorer never writes into a folder, so this browser keeps them.
import { button, el, save } from "./dom.js";

const KEY = "emergo:labels";
const LONGEST = 80; // letters of a name, and of all tags of a run
export const LABELS = ["name", "tags"];

/** Returns the key of a run: its identity, which is the same in every folder. The names of logs and of rows of tables are not. */
export function labelKey(app, run) {
  return /^[0-9a-f]{16}$/.test(run) ? run : [app.index.folder, app.set.key, run].join("/");
}

/** Returns names and tags by key. */
export function labels() {
  try {
    return valid(JSON.parse(localStorage.getItem(KEY)));
  } catch {
    return {}; // no storage, or not ours
  }
}

function valid(found) {
  const text = (value) => (typeof value === "string" ? value.trim().slice(0, LONGEST) : "");
  const pairs = Object.entries(found ?? {}).map(([run, label]) => [run, Object.fromEntries(LABELS.map((field) => [field, text(label?.[field])]))]);
  return Object.fromEntries(pairs.filter(([, label]) => label.name || label.tags));
}

function keep(app, changed) {
  try {
    localStorage.setItem(KEY, JSON.stringify(valid({ ...labels(), ...changed })));
    app.merge();
    app.render();
  } catch (error) {
    app.tell(`This browser does not keep names and tags: ${error.message}`);
  }
}

/** Creates the fields for the name and the tags of a run. */
export function labelFields(app, run) {
  const key = labelKey(app, run);
  const known = { ...labels()[key] };
  const field = (which, hint) => {
    const change = (event) => keep(app, { [key]: { ...labels()[key], [which]: event.target.value } });
    return el("label", { class: "field" }, el("span", { text: which }), el("input", { type: "text", maxlength: LONGEST, placeholder: hint, value: known[which] ?? "", "data-key": `label ${which}`, onchange: change }));
  };
  return el("div", { class: "row" }, field("name", "a name"), field("tags", "tag, another"));
}

/** Creates the buttons that write all names and tags to a file, and read them from one. */
export function labelFiles(app) {
  const read = async (event) => {
    try {
      keep(app, JSON.parse(await event.target.files[0].text()));
    } catch {
      app.tell("This file does not hold names and tags that emergo view saved.");
    }
  };
  const file = el("input", { type: "file", accept: ".json", hidden: true, "aria-label": "A file of names and tags", onchange: read });
  const write = () => save("labels.json", JSON.stringify(labels(), null, 1), "application/json");
  return [button("Save names", write, { class: "small" }), button("Load names", () => file.click(), { class: "small" }), file];
}
