// Why a job waits, how fast it works, and how long it may still take.

import { at, get } from "./api.js";
import { count, duration, moment } from "./format.js";

const SPAN_MS = 30_000;

// Trials a second, over the last half minute.
export class Speed {
  constructor() {
    this.ended = [];
    this.since = performance.now();
  }

  add() {
    this.ended.push(performance.now());
  }

  get perSecond() {
    const now = performance.now();
    this.ended = this.ended.filter((moment) => now - moment < SPAN_MS);
    const seconds = Math.min(SPAN_MS, now - this.since) / 1000;
    return this.ended.length > 1 && seconds > 2 ? this.ended.length / seconds : 0;
  }
}

export function left(job, perSecond) {
  const open = job.problems.filter(({ state }) => state === "queued" || state === "running");
  const done = (p) => p.progress?.trial_finished?.new_trials ?? 0;
  const spent = job.problems.reduce((sum, p) => sum + p.spent_s, 0);
  const limits = [
    job.trials && perSecond && open.reduce((sum, p) => sum + Math.max(0, job.trials - done(p)), 0) / perSecond,
    job.seconds && Math.max(0, job.seconds - spent),
  ].filter((value) => typeof value === "number" && value > 0);
  return limits.length ? `about ${duration(Math.min(...limits))}` : "";
}

export const speedText = (perSecond) => (perSecond ? `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)} trials a second` : "");

// Why nothing of an open job runs; empty if something does. `known` keeps what is asked only once.
export async function whyItWaits(job, known, signal) {
  if ((job.state !== "queued" && job.state !== "running") || job.counts.running) return "";
  const path = `api/devices/${encodeURIComponent(job.device)}`;
  known.trials ??= get(`${path}/failures`, signal).catch(() => ({}));
  const [device, { jobs: queued }, { jobs: running }, { last_measured }] = await Promise.all([
    get(path, signal).catch(() => null), get(at("api/jobs", { state: "queued", limit: 500 }), signal),
    get(at("api/jobs", { state: "running", limit: 500 }), signal), known.trials,
  ]);
  const before = [...running, ...queued].filter(({ id, device: other }) => other === job.device && id < job.id);
  const place = before.length ? ` ${count(before.length, "job")} for this device ${before.length === 1 ? "is" : "are"} before it: ${before.slice(0, 5).map(({ id }) => id).join(", ")}.` : "";
  if (!device || device.state === "offline") {
    const since = last_measured ? ` It last measured on ${moment(last_measured)}.` : "";
    return `No worker offers ${job.device} here now.${since}${place}`;
  }
  const alike = device.stations.filter(({ model }) => !job.model || model === job.model);
  if (!alike.length) return `It was begun with another driver, or other limits, than the device has now: it goes on when a worker offers it as it was.${place}`;
  const free = alike.some((one) => one.state === "idle");
  if (free && !job.model && alike.some(({ model }) => model !== alike[0].model)) return `A worker is free, but new jobs begin with the driver of the worker that came first.${place}`;
  if (free) return `A device is free: the job begins when there is room for another search.${place}`;
  const busy = alike.filter((one) => one.state === "busy");
  if (!busy.length) return `The device cannot be used now: ${alike.map(({ worker, trouble }) => trouble && `${worker}: ${trouble}`).filter(Boolean).join("; ")}.${place}`;
  const [one] = busy;
  const what = one.job ? ` with job ${one.job}` : "";
  return `${busy.length === 1 ? `The device is busy${what}` : `All ${busy.length} devices are busy`}.${place}`;
}
