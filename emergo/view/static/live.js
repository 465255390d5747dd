// The live view: progress of studies, running processes, and failures with reasons.
import { STATES, ink } from "./colour.js";
import { button, duration, el, refill, shown, swatch, table, words } from "./dom.js";
import { setState } from "./state.js";

const KEPT = 240; // losses per run in training that the page remembers

export class LiveView {
  constructor(app) {
    this.app = app;
    this.node = el("div", { class: "main wide" });
  }

  update() {
    const { status, index } = this.app;
    const head = [el("h2", { text: "Live" })];
    if (!status) return refill(this.node, head, el("p", { class: "message", text: "Loading …" }));
    const studies = status.map((each) => this.#study(each));
    const logs = this.app.set?.kind === "log" ? [this.#logs()] : [];
    const none = status.length || logs.length ? [] : [el("p", { class: "message", text: "This folder contains no study, so nothing trains here. See its runs under “All runs”." })];
    const snapshot = this.app.data.live ? [] : [el("p", { class: "quiet", text: "Progress at the time this file was written." })];
    const notes = [...index.notes, ...index.sets.flatMap((set) => set.notes)];
    const unread = notes.length ? [el("h3", { text: "Unreadable files" }), el("ul", {}, [...new Set(notes)].map((note) => el("li", { text: note })))] : [];
    refill(this.node, head, snapshot, logs, none, studies, unread);
    this.app.firstPaint();
  }

  /** Lists the logs, with the one that was written last first. */
  #logs() {
    const now = Date.now() / 1000;
    const logs = this.app.rows.map((row) => ({ ...this.app.constants, ...row })).sort((a, b) => b.written - a.written);
    const rows = logs.map((log) => {
      const open = button(log.identity, () => setState({ view: "run", run: log.identity }), { class: "plain", "data-key": `log ${log.identity}` });
      const age = this.app.data.live ? `${duration(Math.max(0, now - log.written))} ago` : new Date(1000 * log.written).toLocaleString();
      return [open, log.steps, log.rows, log.state === "reached" ? Math.round(log.plateau) : null, age];
    });
    return el("section", { class: "card" }, el("h3", { text: "Logs" }), table("Logs, latest first", ["log", "last step", "rows", "learned at step", "last written"], rows));
  }

  #study(status) {
    if (status.error) return el("section", { class: "card" }, el("h3", { text: status.folder }), el("p", { class: "message", text: status.error }));
    const parts = Object.entries({ ...STATES, waiting: [ink("grid"), "·"] }).map(([name, [colour, mark]]) => [name, status[name] ?? 0, colour, mark]).filter(([, count]) => count > 0);
    const bar = el("div", { class: "bar", role: "img", "aria-label": parts.map(([name, count]) => `${count} ${name}`).join(", ") });
    for (const [, count, colour, mark] of parts) {
      const piece = el("span", { text: mark });
      piece.style.flexGrow = String(count);
      piece.style.background = colour;
      bar.append(piece);
    }
    const key = el("ul", { class: "key" }, parts.map(([name, count, colour, mark]) => el("li", {}, swatch(colour), `${mark} ${count} ${name}`)));
    const left = Math.max(...status.workers.map((worker) => worker.seconds_left ?? 0), 0);
    const rate = status.workers.reduce((sum, worker) => sum + (worker.rate ?? 0), 0);
    const now = status.workers.length ? `${status.training} runs in training, ${shown(Math.round(rate))} steps/s${left ? `, about ${duration(left)} left for the claimed runs` : ""}.` : status.complete ? "Every run has finished." : "No process is training; continue with emergo study run.";
    const title = status.folder === "." ? status.name : `${status.folder}: ${status.name}`;
    return el(
      "section",
      { class: "card" },
      el("h3", { text: title }),
      el("p", { text: `${status.finished} of ${status.runs} runs and ${status.units_finished} of ${status.units} units have finished. ${now}` }),
      bar,
      key,
      status.workers.length ? this.#workers(status.workers) : null,
      status.training_runs.length ? this.#training(status.training_runs) : null,
      status.failed_runs.length ? failures(status.failed_runs) : null,
      Object.keys(status.broken).length ? table("Unreadable runs", ["folder", "reason"], Object.entries(status.broken).slice(0, 50)) : null,
    );
  }

  #workers(workers) {
    const heads = ["study", "cell", "process", "runs", "in training", "step", "loss", "forecast", "steps/s", "time left", "last update"];
    const rows = workers.map((worker) => {
      const cell = Object.entries(worker.axes).map(([axis, values]) => `${words(axis)} ${values.map(shown).join(", ")}`).join("; ");
      const steps = worker.step_min === worker.step_max ? shown(worker.step_min) : `${shown(worker.step_min)} to ${shown(worker.step_max)}`;
      const where = `${worker.host ?? "?"}, process ${worker.pid ?? "?"}${worker.job ? `, job ${worker.job}` : ""}`;
      return [worker.study, cell, where, `${worker.done ?? 0} of ${worker.total ?? "?"}`, worker.running, steps, shown(worker.loss), worker.note || null, shown(worker.rate && Math.round(worker.rate)), duration(worker.seconds_left), worker.age === null ? null : `${Math.round(worker.age)} s ago`];
    });
    return table("Running processes", heads, rows);
  }

  /** Lists the runs in training, soonest to emerge first, with links to their pages. */
  #training(runs) {
    const heads = ["run", "axes", "seed", "step", "loss", "loss since this page opened", "forecast", "reason"];
    const lit = this.app.highlighted().map((row) => row.identity);
    const rows = runs.map((run) => {
      const open = button(run.identity, () => setState({ view: "run", set: run.set, run: run.identity }), { class: "plain", "data-key": `training ${run.identity}` });
      const axes = Object.entries(run.axes).map(([axis, value]) => `${words(axis)} ${shown(value)}`).join(", ");
      const cells = [open, axes, run.seed, run.step, shown(run.loss), this.#spark(run.identity), run.forecast?.words, run.forecast?.why];
      return { attributes: { class: lit.includes(run.identity) ? "chosen" : null }, cells };
    });
    return table("Runs in training, soonest to emerge first", heads, rows);
  }

  #spark(run) {
    const past = (this.app.history.get(run) ?? []).map(([, loss]) => loss);
    const canvas = el("canvas", { width: 240, height: 44, class: "spark", role: "img", "aria-label": past.length ? `from ${shown(past[0])} to ${shown(past.at(-1))}` : "no loss yet" });
    if (past.length < 2) return canvas;
    const context = canvas.getContext("2d");
    const [low, high] = [Math.min(...past), Math.max(...past)];
    Object.assign(context, { strokeStyle: ink("accent"), lineWidth: 2.5 });
    context.beginPath();
    past.forEach((loss, i) => context.lineTo(4 + (232 * i) / (past.length - 1), 40 - (36 * (loss - low)) / (high - low || 1)));
    context.stroke();
    return canvas;
  }

  destroy() {}
}

function failures(failed) {
  const heads = ["run", "study", "axes", "seed", "tries", "reason", "when"];
  const rows = [...failed].reverse().map((each) => {
    const axes = Object.entries(each.axes).map(([axis, value]) => `${words(axis)} ${shown(value)}`).join(", ");
    return [each.identity, each.study, axes, each.seed, each.tries, each.reason, each.when ? new Date(1000 * each.when).toLocaleString() : null];
  });
  return table("Failures, latest first", heads, rows);
}

/** Records the losses of the runs in training while the page is open. */
export function remember(history, status) {
  for (const { identity, step, loss } of status.flatMap((study) => study.training_runs ?? [])) {
    const past = history.get(identity) ?? [];
    if (Number.isFinite(loss) && past.at(-1)?.[0] !== step) history.set(identity, [...past, [step, loss]].slice(-KEPT));
  }
}

/** Returns steps and values of a run in training: the curve that its process told, and the losses since the page was opened. */
export function soFar(app, row, name) {
  const { metric, curve } = row.forecast ?? {};
  const told = metric === name ? curve[0].map((step, i) => [step, curve[1][i] ?? NaN]) : [];
  const last = told.at(-1)?.[0] ?? -1;
  const since = name === "loss" ? (app.history.get(row.identity) ?? []).filter(([step]) => step > last) : [];
  const points = [...told, ...since];
  return [points.map(([step]) => step), points.map(([, value]) => value)];
}
