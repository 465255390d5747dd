// The state of the page, stored in the address after the `#`, so that it can be reloaded and shared.

let listeners = [];
let current = parse();

function parse() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function state() {
  return current;
}

/** Returns a part of the state that is JSON; invalid JSON counts as missing. */
export function part(name, otherwise) {
  try {
    return current[name] === undefined ? otherwise : JSON.parse(current[name]);
  } catch {
    return otherwise;
  }
}

/** Changes parts of the state; null removes one. The back button undoes changes of `view`, `set` and `run`. */
export function setState(changes) {
  const next = { ...current };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete next[name];
    else next[name] = typeof value === "string" ? value : JSON.stringify(value);
  }
  const step = ["view", "set", "run"].some((name) => next[name] !== current[name]);
  current = next;
  const address = `${location.pathname}${location.search}#${new URLSearchParams(next)}`;
  if (step) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener();
}

export function onState(listener) {
  listeners.push(listener);
}

addEventListener("popstate", () => {
  current = parse();
  for (const listener of listeners) listener();
});
