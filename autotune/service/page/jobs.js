// Jobs, the newest first, live.

import { at, every, get } from "./api.js";
import { cell, fill, h, hint, keep, numeric, rowHead, select, state, table } from "./dom.js";
import { between, duration, moment } from "./format.js";
import { connected } from "./status.js";

const PAGE = 50;
const STATES = ["", "queued", "running", "done", "failed", "cancelled"].map((word) => [word, word || "all"]);

export async function jobsView(place, _, query, signal) {
  const wanted = query.get("state") ?? "";
  const before = query.get("before") ?? "";
  const list = table("Jobs", ["Job", "State", "Device", "Sizes", "Budget", "Submitted", ["Took", "number"]]);
  const none = h("div");
  const older = h("p.more");
  await every(2000, signal, async () => {
    const { jobs } = await get(at("api/jobs", { limit: PAGE, state: wanted, before }), signal);
    keep(list.body, jobs, (job) => job.id, row);
    list.element.hidden = !jobs.length;
    fill(none, jobs.length ? [] : hint(wanted ? `No job is ${wanted}.` : "No job yet."));
    const last = jobs.length === PAGE ? jobs.at(-1).id : null;
    fill(older, last && h("a", { href: at("#/jobs", { state: wanted, before: last }) }, "Older jobs"));
  }, connected);
  const filter = select("state", STATES, wanted, (state) => (location.hash = at("#/jobs", { state })));
  fill(place,
    h("div.heading", {}, h("h1", {}, "Jobs"), h("a.button.main", { href: "#/new" }, "New job")),
    h("div.filters", {}, h("label", {}, "State ", filter)),
    list.element, none, older);
}

function row(job) {
  return h("tr", {},
    rowHead(h("a", { href: `#/job/${job.id}` }, `${job.id}`), job.kind === "verify" ? " (verify)" : ""),
    cell(state(job.state)),
    cell(h("a", { href: `#/device/${job.device}` }, job.device)),
    cell(progress(job)),
    cell(budget(job)),
    cell(h("time", { datetime: job.created_at, title: moment(job.created_at) }, moment(job.created_at))),
    numeric(between(job.created_at, job.ended_at)),
  );
}

export function progress(job) {
  const total = Object.values(job.counts).reduce((sum, number) => sum + number, 0);
  const ended = total - (job.counts.queued ?? 0) - (job.counts.running ?? 0);
  const failed = job.counts.failed ? `, ${job.counts.failed} failed` : "";
  const text = `${ended} of ${total}${failed}`;
  return h("span.progress", {}, h("progress", { max: total, value: ended, "aria-label": `sizes ended: ${text}` }), text);
}

export function budget(job) {
  const parts = [job.trials && `${job.trials} trials a size`, job.seconds && duration(job.seconds)].filter(Boolean);
  return parts.join(", ") || "–";
}
