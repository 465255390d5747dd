// Forecasts of emergence: the latest one of a run in training, and past ones of a finished run with the outcome.
import { ink, mixed } from "./colour.js";
import { csv, el, refill } from "./dom.js";
import { Plot, band, domain, point } from "./plot.js";

export const CAME = "#e69f00"; // the end of the plateau
const SHARES = [[80, 0.2], [50, 0.5]]; // intervals in per cent, and the opacity of their bands
const round = (step) => (Number.isFinite(step) ? Number(step.toPrecision(2)).toLocaleString("en") : "unknown");
const exact = (step) => Math.round(step).toLocaleString("en");
const sentence = (words) => `${/^\w*_/.test(words) ? words[0] : words[0].toUpperCase()}${words.slice(1)}.`; // column names keep their case

/** Returns the ends of an interval; an unknown end is infinite. */
function ends(forecast, share) {
  const [low, high] = forecast.intervals[`${share}%`] ?? [null, null];
  return [low ?? 0, high ?? Infinity];
}

/** Returns the latest forecast at or before a step. */
export function lastBy(moments, step) {
  return moments.findLast((moment) => moment.at <= step) ?? moments[0];
}

/** Shades the intervals of a forecast in a plot over steps. */
export function intervals(context, view, forecast, [bottom, top]) {
  const colour = ink("forecast");
  for (const [share, alpha] of SHARES) {
    const [low, high] = ends(forecast, share);
    const [left, right] = [view.x(low), Number.isFinite(high) ? view.x(high) : view.width].map((px) => Math.min(Math.max(px, 0), view.width));
    Object.assign(context, { fillStyle: colour, globalAlpha: alpha * 0.6 });
    if (right > left) context.fillRect(left, view.y(top), right - left, view.y(bottom) - view.y(top));
  }
  context.globalAlpha = 1;
}

export class ForecastPart {
  constructor() {
    this.words = el("div", { class: "told" });
    this.plot = new Plot("Forecasts over training", { name: "forecasts", height: 270 });
    this.body = el("div", { class: "pair" }, this.words, this.plot.node);
    this.node = el("section", { class: "card forecast", "aria-label": "Forecast" }, el("h3", { text: "Forecast" }), this.body);
  }

  /** Shows a finished run. `told` is the answer of the server, null while loading; `step` is the slider's step. */
  lookBack(told, step, log) {
    this.node.hidden = !told;
    if (!told) return;
    const asked = told.moments.filter((moment) => moment.state === "forecast");
    this.plot.node.hidden = !asked.length;
    if (!told.moments.length) return refill(this.words, el("p", { class: "quiet", text: `No forecast: ${told.why}.` }));
    const now = lastBy(told.moments, step);
    const early = asked.length ? `The first forecast is from step ${exact(asked[0].at)}: ${asked[0].words}.` : `None of ${told.moments.length} earlier steps has a forecast.`;
    const basis = "Each forecast uses the log up to its step.";
    const [judged, last] = [verdict(now, told), now === asked[0] ? basis : `${early} ${basis}`];
    refill(this.words, said(now, `Forecast at step ${exact(now.at)}`), judged ? el("p", { text: judged }) : null, el("p", { class: "quiet", text: last }));
    if (asked.length) this.#draw(told, asked, now, log);
  }

  /** Shows a run in training; `forecast` is the latest forecast of its process. */
  training(forecast) {
    this.node.hidden = false;
    this.plot.node.hidden = true;
    const none = el("p", { class: "quiet", text: "No forecast: this run has no threshold, or has only begun." });
    refill(this.words, forecast ? said(forecast, `At step ${exact(forecast.at)}`) : none);
  }

  #draw(told, asked, now, log) {
    const came = Number.isFinite(told.came);
    const seen = asked.flatMap((moment) => [moment.step, ...ends(moment, 80)]);
    const xs = domain(told.moments.map((moment) => moment.at).filter((at) => at >= asked[0].at / 3), log, 0.02);
    const ys = domain([...seen, told.came], log);
    const colour = ink("forecast");
    const stretches = stretchesOf(told.moments);
    this.plot.set({
      x: { label: "forecast made at step", log, domain: xs },
      y: { label: "emergence forecast at step", log, domain: ys },
      curves: [
        { x: xs, y: xs, colour: ink("muted"), dash: [2, 4] },
        ...stretches.map((moments) => ({ x: moments.map((moment) => moment.at), y: moments.map((moment) => moment.step), colour, width: 2 })),
      ],
      under: (context, view) => {
        for (const [share, alpha] of SHARES) {
          for (const moments of stretches) {
            const wide = moments.length > 1 ? moments : [moments[0], { ...moments[0], at: moments[0].at * 1.01 }];
            const [lows, highs] = [0, 1].map((end) => wide.map((moment) => Math.min(ends(moment, share)[end], 2 * ys[1])));
            band(context, wide.map((moment) => moment.at), lows, highs, colour, view, alpha);
          }
        }
        context.fillStyle = ink("muted");
        for (const moment of told.moments) if (moment.state === "no signal") context.fillRect(view.x(moment.at) - 0.75, view.height - 6, 1.5, 6);
      },
      over: (context, view) => {
        if (!came) return;
        Object.assign(context, { strokeStyle: CAME, lineWidth: 1.8 });
        context.beginPath();
        context.moveTo(0, view.y(told.came));
        context.lineTo(view.width, view.y(told.came));
        context.stroke();
      },
      mark: (context, view) => {
        const px = view.x(now.at);
        Object.assign(context, { strokeStyle: ink("text"), lineWidth: 1.2 });
        context.beginPath();
        context.moveTo(px, 0);
        context.lineTo(px, view.height);
        context.stroke();
        if (now.state === "forecast") point(context, px, view.y(now.step), ink("text"), "reached", 4);
      },
      csv: () => csv(["asked_at", "state", "step", ...[50, 80].flatMap((share) => [`low_${share}`, `high_${share}`])], told.moments.map((moment) => [moment.at, moment.state, moment.step, ...[50, 80].flatMap((share) => moment.intervals[`${share}%`] ?? [null, null])])),
      summary: `Forecast step of emergence against the step of the forecast: ${asked.length} of ${told.moments.length} steps have a forecast, the first at step ${exact(asked[0].at)} (${asked[0].words}), the last at step ${exact(asked.at(-1).at)} (${asked.at(-1).words}). ${came ? `The run emerged at step ${exact(told.came)}.` : "The run did not emerge."}`,
    });
    const shades = SHARES.map(([share, alpha]) => ({ value: `${share}%`, colour: mixed(ink("panel"), colour, alpha) }));
    const arrived = came ? [{ value: "emerged", colour: CAME }] : [];
    this.plot.setLegend("forecast", [{ value: "middle", colour }, ...shades.reverse(), { value: "no signal", colour: ink("muted") }, ...arrived]);
    this.plot.note.textContent = "dotted: the step of the forecast; points below it lie in the past";
  }

  destroy() {
    this.plot.destroy();
  }
}

/** Splits the steps into stretches of consecutive forecasts. */
function stretchesOf(moments) {
  const stretches = [[]];
  for (const moment of moments) {
    if (moment.state === "forecast") stretches.at(-1).push(moment);
    else if (stretches.at(-1).length) stretches.push([]);
  }
  return stretches.filter((stretch) => stretch.length);
}

function said(forecast, when) {
  const words = { forecast: `Emerges at about step ${round(forecast.step)}`, emerged: `Emerged at step ${exact(forecast.step)}`, coming: sentence(forecast.words ?? "").slice(0, -1) }[forecast.state] ?? "No signal";
  const interval = (share) => [el("dt", { text: `${share}%` }), el("dd", { text: ends(forecast, share).map(round).join(" to ") })];
  const both = forecast.state === "forecast" ? el("dl", { "aria-label": "Intervals" }, interval(50), interval(80)) : null;
  return el("div", {}, el("p", { class: "quiet", text: when }), el("p", { class: "large", text: words }), both, el("p", { class: "quiet", text: sentence(forecast.why) }));
}

/** Compares a forecast with the outcome. */
function verdict(forecast, { came, until }) {
  if (forecast.state === "emerged") return "";
  if (!Number.isFinite(came)) {
    const missed = forecast.state === "forecast" && until > ends(forecast, 80)[1];
    return `Not emerged by step ${exact(until)}, the last one${missed ? ", after the 80% interval" : ""}.`;
  }
  if (forecast.state !== "forecast") return `The run emerged at step ${exact(came)}.`;
  const inside = [50, 80].find((share) => came >= ends(forecast, share)[0] && came <= ends(forecast, share)[1]);
  const where = inside ? `in the ${inside}% interval` : `${came < ends(forecast, 80)[0] ? "before" : "after"} the 80% interval`;
  return `The run emerged at step ${exact(came)}, ${where}.`;
}
