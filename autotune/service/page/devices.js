// All devices, live.

import { every, get, token } from "./api.js";
import { connected, fill, h, hint, snippet, state, table } from "./dom.js";
import { count } from "./format.js";
import { fleetHours } from "./hours.js";

const HOURS_MS = 60_000;

const COLUMNS = [
  { name: "Device", kind: "head", cell: ({ slug }) => h("a", { href: `#/device/${slug}` }, slug) },
  { name: "State", cell: (device) => state(device.state) },
  { name: "Working on", cell: ({ stations }) => stations.filter(({ job }) => job).map(({ job }) => h("a", { href: `#/job/${job}` }, `job ${job}`)) },
  { name: "Name", cell: ({ name, model }) => name || model },
  { name: "Driver", cell: ({ driver }) => h("span.driver", { title: driver }, driver) },
  { name: "Tuned", kind: "number", cell: ({ slug, tuned }) => (tuned ? h("a", { href: `#/device/${slug}` }, count(tuned, "size")) : "–") },
  { name: "Worker", cell: ({ stations }) => stations.map(station) },
];

export async function devicesView(place, _, __, signal) {
  const list = table("Devices", COLUMNS);
  const summary = h("p.summary");
  const none = h("div");
  const compare = h("a.button", { href: "#/compare" }, "Compare");
  await every(2000, signal, async () => {
    const { devices } = await get("api/devices", signal);
    summary.textContent = summed(devices);
    list.show(devices.map(steady), (device) => device.slug);
    list.element.hidden = summary.hidden = !devices.length;
    compare.hidden = !devices.some(({ tuned }) => tuned);
    if (Boolean(none.firstChild) === Boolean(devices.length)) fill(none, devices.length ? [] : howToBegin());
  }, connected);
  const worked = h("div");
  fill(place, h("div.heading", {}, h("h1", {}, "Devices"), summary, compare), list.element, none, worked);
  every(HOURS_MS, signal, async () => fill(worked, fleetHours((await get("api/hours", signal)).devices)), () => {}).catch(() => {});
}

// Without what changes at every look.
function steady(device) {
  const stations = device.stations.map(({ heard_s, since, trials, ...kept }) => ({
    ...kept,
    trials,
    silent: heard_s > 45 ? Math.round(heard_s / 5) * 5 : 0,
  }));
  return { ...device, stations };
}

function station(one) {
  const silent = one.silent ? `, silent for ${one.silent} s` : "";
  const trouble = one.trouble ? `, ${one.trouble}` : "";
  return h("div", {}, `${one.worker}, ${count(one.trials, "trial")}${silent}${trouble}`);
}

function summed(devices) {
  const there = devices.filter((device) => device.state !== "offline").length;
  const busy = devices.filter((device) => device.state === "busy").length;
  return `${count(devices.length, "device")}, ${there} online, ${busy} busy`;
}

export function howToBegin() {
  const secret = token() ? " --token-file FILE" : "";
  return h("ol.steps", {},
    h("li", {}, h("p", {}, "Offer a device: on the machine that has it, run"), snippet("A worker", `autotune worker --server ${location.origin}${secret}`),
      secret && hint("FILE holds the token of workers in its first line.")),
    h("li", {}, h("p", {}, "Tune sizes on it: ", h("a", { href: "#/new" }, "submit a job"), ", or run"),
      snippet("A first job", `autotune submit --server ${location.origin}${secret} --device cpu --shape 512,512,512 --trials 100`)));
}

