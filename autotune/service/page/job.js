// One job, followed as it happens.

import { at, every, follow, get, post, told, trialsOf } from "./api.js";
import { connected, facts, fill, h, sizeLink, state, table } from "./dom.js";
import { count, duration, failures, gain, moment, rate, time } from "./format.js";
import { History } from "./history.js";
import { budget, progress } from "./jobs.js";
import { multiple } from "./multiples.js";
import { left, Speed, speedText, whyItWaits } from "./waiting.js";

const CHARTS = 12;
const LOOK_MS = 5000;

export async function jobView(place, id, _, signal) {
  const view = new JobPage(await get(`api/jobs/${encodeURIComponent(id)}`, signal), signal);
  fill(place, view.element);
  view.show();
  view.drawMultiples();
  if (!view.isOpen()) return;
  every(LOOK_MS, signal, () => view.explain(), () => {});
  let wasLost = false;
  const onLoss = (isLost) => {
    connected(isLost);
    if (wasLost && !isLost) view.charted = null; // trials that ended meanwhile are in the ledger
    wasLost = isLost;
  };
  const take = (name, data) => view.take(name, data);
  follow(`api/jobs/${view.job.id}/events?stay=true`, signal, take, onLoss).catch((error) => view.tell(told(error)));
}

class JobPage {
  constructor(job, signal) {
    this.job = job;
    this.signal = signal;
    this.head = h("div.heading");
    this.facts = h("div");
    this.note = h("p.note", { role: "status" });
    this.live = h("section.live");
    this.live.hidden = true;
    this.waits = h("p.waits", { role: "status" });
    this.multiples = h("div");
    this.drawn = new Map();
    this.most = CHARTS;
    this.speed = new Speed();
    this.known = {};
    this.history = null;
    this.charted = null;
    this.list = table("Sizes of the job", columns(() => this.job));
    const sizes = h("section", {}, h("h2", {}, "Sizes"), this.list.element);
    this.element = h("div", {}, this.head, this.waits, this.facts, this.note, this.live, sizes, this.multiples);
  }

  isOpen = () => this.job.state === "queued" || this.job.state === "running" || Boolean(this.job.counts.running);

  take(name, data) {
    if (name === "job") this.job = data;
    if (name === "job_changed") this.job = withChanges(this.job, data);
    const problem = this.job.problems[data.problem];
    if (problem) this.happen(name, data, problem);
    this.later();
  }

  happen(name, data, problem) {
    (problem.progress ??= {})[name] = data; // the latest of each name, as the service keeps them
    if (name === "trial_finished") this.speed.add();
    if (name === "trial_finished" && this.charted === data.problem) this.history?.add(ofSearch(data.trial));
    if (name === "problem_finished") {
      problem.outcome = data.outcome;
      this.drawMultiples(data.problem);
    }
    if (name === "device_drifted") this.tell(drift(data));
  }

  // A device without a wait may finish hundreds of trials a second; a picture a frame is enough.
  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      if (!this.signal.aborted) this.show();
    });
  }

  show() {
    const { job } = this;
    const cancel = h("button", { type: "button", onclick: (event) => this.cancel(event.target) }, "Cancel job");
    const isOpen = job.state === "queued" || job.state === "running";
    if (this.shown !== job.state) fill(this.head, h("h1", {}, `Job ${job.id}`), state(job.state), isOpen && cancel);
    this.shown = job.state;
    fill(this.facts, facts([
      ["Device", h("a", { href: at(`#/device/${job.device}`, { family: job.problems[0]?.family }) }, job.device)],
      ["Kind", job.kind === "verify" ? "verify an uploaded table" : "tune"],
      ["Sizes", progress(job)],
      ["Budget", budget(job)],
      ["Searched at", elsewhere(job)],
      ["Speed", job.state === "running" && speedText(this.speed.perSecond)],
      ["Time left", job.state === "running" && left(job, this.speed.perSecond)],
      ["Worked", duration(job.problems.reduce((sum, p) => sum + p.spent_s, 0))],
      ["Algorithms", job.algorithms.join(", ") || "all"],
      ["Submitted", moment(job.created_at)],
      ["Ended", job.ended_at && moment(job.ended_at)],
      ["Left out", job.left_out.join("; ")],
      ["Notes", job.message],
    ]));
    this.list.show(job.problems, (problem) => problem.number);
    const ended = job.problems.filter(({ state }) => state !== "queued" && state !== "running").length;
    document.title = `${isOpen ? `${ended} of ${job.problems.length}` : job.state} · Job ${job.id} · autotune`;
    this.chart();
  }

  async explain() {
    const why = await whyItWaits(this.job, this.known, this.signal);
    if (this.waits.textContent !== why) this.waits.textContent = why;
    this.show();
  }

  // A small chart for each size that was searched, the first ones at once; `again` is the number of one that has changed.
  async drawMultiples(again) {
    if (this.job.kind !== "tune") return;
    this.drawn.delete(again);
    const searched = this.job.problems.filter((p) => p.state !== "queued" && p.state !== "running");
    for (const problem of searched.slice(0, this.most)) {
      if (this.drawn.has(problem.number)) continue;
      const trials = await trialsOf(this.job.device, problem.shape, problem.family, this.signal).catch(() => []);
      this.drawn.set(problem.number, multiple(this.job.device, problem, trials));
    }
    if (this.signal.aborted || !this.drawn.size) return;
    const more = h("button", { type: "button", onclick: () => ((this.most = Infinity), this.drawMultiples()) }, `Show all ${searched.length}`);
    fill(this.multiples, h("section", {}, h("h2", {}, "Searches"),
      h("div.multiples", {}, [...this.drawn].sort(([a], [b]) => a - b).map(([, chart]) => chart)),
      searched.length > this.most && h("p.more", {}, more),
      h("p.hint", {}, "Each trial at a size, also of earlier jobs, in its order, and the best so far; times go up on a logarithmic axis.")));
  }

  // The search of the size that is worked on.
  async chart() {
    const running = this.job.problems.find((problem) => problem.state === "running");
    if (!running || this.job.kind !== "tune" || this.charted === running.number) {
      if (!running && this.history) this.live.classList.add("ended");
      return;
    }
    this.charted = running.number;
    this.history = new History(this.signal);
    fill(this.live, h("h2", {}, `Search at ${running.shape}`), this.history.element);
    this.live.hidden = false;
    const known = await trialsOf(this.job.device, running.shape, running.family, this.signal).catch(() => []);
    this.history.begin(known.filter((trial) => trial.purpose !== "final"));
  }

  async cancel(button) {
    button.disabled = true;
    try {
      this.job = await post(`api/jobs/${this.job.id}/cancel`, {});
      document.getElementById("main").focus({ preventScroll: true }); // the button goes
      this.tell(this.job.state === "cancelled" ? "Cancelled; every trial is kept." : "Stops after the running trial.");
    } catch (error) {
      button.disabled = false;
      this.tell(told(error));
    }
    this.show();
  }

  tell = (text) => (this.note.textContent = text);
}

const ofSearch = ({ measurement, ...trial }) => ({ ...trial, time_ns: measurement?.time_ns ?? null, purpose: "search" });

// The service that has the search, and with it the events: only the states come here.
function elsewhere(job) {
  const address = job.problems.find(({ service }) => service)?.service;
  return address && h("a", { href: `${address}/#/job/${job.id}` }, address);
}

function withChanges(job, changed) {
  const problems = [...job.problems];
  for (const problem of changed.problems) problems[problem.number] = problem;
  return { ...changed, problems };
}

const latest = (problem) => problem.progress?.trial_finished ?? {};
const winnerOf = (problem) => problem.outcome?.winner ?? null;
const best = (problem) => winnerOf(problem)?.time_ns ?? latest(problem).best_ns ?? null;

// The job changes while the table stays.
const columns = (job) => [
  { name: "Size", kind: "head", cell: (p) => [sizeLink(job().device, p.family, p.shape), label(p)] },
  { name: "State", cell: (p) => [state(p.state), p.state === "running" && h("small", {}, phase(job(), p.progress ?? {}))] },
  { name: "Trials", kind: "number", cell: (p) => trials(p, job()) },
  { name: "Best", kind: "number", cell: (p) => (best(p) ? time(best(p)) : "–") },
  { name: "Rate", kind: "number", cell: (p) => (best(p) ? rate(p, best(p)) : "–") },
  { name: "Over default", kind: "number", cell: (p) => (winnerOf(p) ? gain(winnerOf(p)) : "–") },
  { name: "Failed trials", cell: (p) => (p.state === "queued" ? "–" : failures(p.outcome?.failures ?? latest(p).failures)) },
  { name: "Notes", cell: (p) => message(p, p.outcome ?? {}) },
];

function label(problem) {
  const words = [problem.label, problem.calls > 1 && `×${problem.calls}`].filter(Boolean);
  return words.length > 0 && h("small", {}, words.join(" "));
}

const phase = (job, progress) => (job.kind === "verify" ? "verification" : progress.finals_started ? "finals" : "search");

function trials(problem, job) {
  const done = problem.outcome?.new_trials ?? problem.progress?.trial_finished?.new_trials;
  if (done === undefined || done === null) return "–";
  return problem.state === "running" && job.trials ? `${done} of ${job.trials}` : `${done}`;
}

function message(problem, outcome) {
  const space = problem.progress?.problem_started?.configurations;
  const parts = [problem.message, outcome.result, outcome.winner && outcome.winner.configuration.algorithm];
  if (problem.state === "running") parts.push(problem.worker && `on ${problem.worker}`, space && count(space, "configuration"));
  else if (problem.spent_s) parts.push(duration(problem.spent_s));
  return parts.filter(Boolean).join(", ");
}

function drift({ slowdown, rest_s }) {
  const how = slowdown > 1 ? `${slowdown.toPrecision(3)} times slower` : `${(1 / slowdown).toPrecision(3)} times faster`;
  return `The device runs ${how} than at the start: times are corrected${rest_s ? `; it rests ${duration(rest_s)}` : ""}.`;
}
