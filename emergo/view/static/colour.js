// Colour-blind safe colours for light and dark backgrounds.

const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442"];
const ON_DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442", "#0072b2"];
const OTHER = "#8a8a8a";
/** The colour of each state of a run, and the mark that tells it without colour. */
export const STATES = { reached: ["#0072b2", "●"], trained: ["#009e73", "■"], censored: ["#e69f00", "△"], failed: ["#d55e00", "×"], training: ["#56b4e9", "○"] };

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Returns a colour of the style sheet for use on a canvas. */
export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns a viridis colour, without the end of the scale that has little contrast with the background. */
export function shade(share) {
  const [low, high] = isDark() ? [0.28, 1] : [0, 0.82];
  const place = (low + (high - low) * Math.min(1, Math.max(0, share))) * (VIRIDIS.length - 1);
  const left = Math.min(VIRIDIS.length - 2, Math.floor(place));
  return mixed(VIRIDIS[left], VIRIDIS[left + 1], place - left);
}

/** Mixes two colours, each given as `#rrggbb`. */
export function mixed(from, to, share) {
  const channel = (colour, i) => Number.parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(channel(from, i) + share * (channel(to, i) - channel(from, i)))).join(",")})`;
}

const text = (value) => (value === null || value === undefined ? "–" : String(value));

/** Assigns colours to the values of a column: a scale for numbers and for many texts, distinct colours for a few texts. */
export function colours(name, values) {
  if (!name) {
    const accent = ink("accent");
    return { of: () => accent, entries: [] };
  }
  const distinct = [...new Map(values.map((value) => [text(value), value])).values()];
  const numbers = distinct.filter((value) => typeof value === "number").sort((a, b) => a - b);
  const others = distinct.filter((value) => typeof value !== "number").sort((a, b) => text(a).localeCompare(text(b), undefined, { numeric: true }));
  const assigned = new Map();
  const hues = isDark() ? ON_DARK : OKABE_ITO;
  numbers.forEach((value, i) => assigned.set(text(value), shade(numbers.length > 1 ? i / (numbers.length - 1) : 0.3)));
  others.forEach((value, i) => {
    const fixed = name === "state" ? STATES[value]?.[0] : value === null ? OTHER : others.length <= hues.length ? hues[i] : shade(i / (others.length - 1));
    assigned.set(text(value), fixed ?? OTHER);
  });
  const ordered = [...numbers, ...others];
  return { of: (value) => assigned.get(text(value)) ?? OTHER, entries: ordered.map((value) => ({ value, colour: assigned.get(text(value)), mark: name === "state" ? STATES[value]?.[1] : null })) };
}
