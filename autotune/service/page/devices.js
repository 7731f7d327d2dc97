// All devices, live.

import { every, get } from "./api.js";
import { cell, fill, h, hint, keep, numeric, rowHead, state, table } from "./dom.js";
import { count } from "./format.js";
import { connected } from "./status.js";

export async function devicesView(place, _, __, signal) {
  const list = table("Devices", ["Device", "State", "Working on", "Name", "Driver", ["Tuned", "number"], "Worker"]);
  const summary = h("p.summary");
  const none = h("div");
  await every(2000, signal, async () => {
    const { devices } = await get("api/devices", signal);
    summary.textContent = summed(devices);
    keep(list.body, devices.map(steady), (device) => device.slug, row);
    list.element.hidden = !devices.length;
    fill(none, devices.length ? [] : howToBegin());
  }, connected);
  fill(place, h("div.heading", {}, h("h1", {}, "Devices"), summary), list.element, none);
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

function row(device) {
  const working = device.stations.filter((station) => station.job);
  return h("tr", {},
    rowHead(h("a", { href: `#/device/${device.slug}` }, device.slug)),
    cell(state(device.state)),
    cell(working.map((station) => h("a", { href: `#/job/${station.job}` }, `job ${station.job}`))),
    cell(device.name || device.model),
    cell(h("span.driver", { title: device.driver }, device.driver)),
    numeric(device.tuned ? h("a", { href: `#/device/${device.slug}` }, count(device.tuned, "size")) : "–"),
    cell(device.stations.map(station)),
  );
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
  return [
    hint("No device is known yet. A machine with a device offers it with:"),
    h("pre", {}, `autotune worker --server ${location.origin}`),
  ];
}

