// Grid lines of an axis, and their labels.
import { shown } from "./dom.js";

const NARROW = 10; // logarithmic axes over a smaller factor have evenly spaced ticks
const ROOM = 1.6; // minimal distance of ticks with finer steps, in units of the usual one

/** Selects sorted values whose labels do not overlap: first the ends, then the others in order. */
export function spread(values, place, least) {
  const kept = [];
  const far = (value) => kept.every((other) => Math.abs(place(value) - place(other)) >= least);
  for (const value of [values[0], values.at(-1), ...values]) if (value !== undefined && far(value)) kept.push(value);
  return kept.sort((a, b) => a - b);
}

/** Returns the ticks of a logarithmic axis of `length` pixels, with labels at least `least` pixels apart, at `values` if given. */
export function logTicks([low, high], length, least, values = null) {
  const place = (value) => (length * Math.log(value / low)) / Math.log(high / low);
  const at = values?.length ? spread(values, place, least) : high / low < NARROW ? evenSteps(low, high, place, least) : null;
  return at ? { splits: at, values: at.map(values?.length ? shown : number) } : decades(low, high, length, least);
}

/** Returns multiples of 1, 2 or 5 times a power of ten; small values get finer steps if labels fit. */
function evenSteps(low, high, place, least) {
  const multiples = (step) => {
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) found.push(Number((i * step).toPrecision(6)));
    return found;
  };
  const close = (step) => {
    const [before, last] = multiples(step).slice(-2);
    return last !== undefined && place(last) - place(before) < least;
  };
  const smallest = Math.floor(Math.log10(high - low)) - 2;
  const steps = Array.from({ length: 4 }, (_, i) => [1, 2, 5].map((digit) => digit * 10 ** (smallest + i))).flat();
  const chosen = Math.max(0, steps.findIndex((step) => !close(step)));
  const ticks = multiples(steps[chosen]);
  for (const step of steps.slice(Math.max(0, chosen - 2), chosen).reverse()) {
    const below = multiples(step).filter((value) => !ticks.length || place(ticks[0]) - place(value) >= ROOM * least);
    ticks.unshift(...below.slice(-1));
  }
  return ticks;
}

/** Returns lines at all multiples of powers of ten, with labels at the powers, and at 2 and 5 or at all if they fit. */
function decades(low, high, length, least) {
  const lines = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (let digit = 1; digit < 10; digit += 1) lines.push([digit * 10 ** power, digit]);
  }
  const inside = lines.filter(([value]) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  const decade = length / Math.log10(high / low);
  const fits = (ratio) => decade * Math.log10(ratio) > least;
  const digits = fits(10 / 9) ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : fits(2) ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(least / decade));
  const written = ([value, digit]) => digits.includes(digit) && (digit > 1 || Math.round(Math.log10(value)) % every === 0);
  const few = inside.filter(written).length < 3 && fits(7 / 5) ? ([, digit]) => [1, 2, 3, 5, 7].includes(digit) : written;
  return { splits: inside.map(([value]) => Number(value.toPrecision(6))), values: inside.map((each) => (few(each) ? number(each[0]) : "")) };
}

const number = (value) => (value >= 1e5 || value < 1e-3 ? power(value) : String(Number(value.toPrecision(6))));
const power = (value) => {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const digits = Number((value / 10 ** exponent).toPrecision(3));
  const raised = [...String(exponent)].map((letter) => ({ "-": "⁻" })[letter] ?? "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(letter)]).join("");
  return `${digits === 1 ? "" : `${digits}·`}10${raised}`;
};
