// Jobs, the newest first, live.

import { at, every, get } from "./api.js";
import { connected, fill, h, hint, select, state, table } from "./dom.js";
import { between, duration, moment } from "./format.js";

const PAGE = 50;
const STATES = ["", "queued", "running", "done", "failed", "cancelled"].map((word) => [word, word || "all"]);

const COLUMNS = [
  { name: "Job", kind: "head", isTold: true, cell: ({ id, kind }) => [h("a", { href: `#/job/${id}` }, `${id}`), kind === "verify" && " (verify)"] },
  { name: "State", cell: (job) => state(job.state) },
  { name: "Device", cell: ({ device }) => h("a", { href: `#/device/${device}` }, device) },
  { name: "Sizes", cell: progress },
  { name: "Budget", cell: budget },
  { name: "Submitted", cell: ({ created_at }) => h("time", { datetime: created_at, title: moment(created_at) }, moment(created_at)) },
  { name: "Took", kind: "number", cell: (job) => (job.state === "queued" ? "–" : between(job.created_at, job.ended_at)) },
];

export async function jobsView(place, _, query, signal) {
  const wanted = query.get("state") ?? "";
  const before = query.get("before") ?? "";
  const list = table("Jobs", COLUMNS);
  const none = h("div");
  const older = h("p.more");
  await every(2000, signal, async () => {
    const { jobs } = await get(at("api/jobs", { limit: PAGE, state: wanted, before }), signal);
    list.show(jobs, (job) => job.id);
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
