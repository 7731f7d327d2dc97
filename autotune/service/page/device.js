// One device: who it is, what tuning gained on it, its networks, its table, its failures and its hours of work.

import { at, download, every, get, post, told } from "./api.js";
import { connected, facts, fill, h, hint, state, table } from "./dom.js";
import { configuration, count, moment } from "./format.js";
import { drivers } from "./drivers.js";
import { hours } from "./hours.js";
import { networks } from "./networks.js";
import { overview } from "./overview.js";
import { finder, Winners } from "./winners.js";

export async function deviceView(place, slug, query, signal) {
  const path = `api/devices/${encodeURIComponent(slug)}`;
  const [{ families }, { formats }] = await Promise.all(["api/families", "api/export"].map((one) => get(one, signal)));
  const known = families.find(({ name }) => name === (query.get("family") ?? "gemm")) ?? families[0];
  const family = known.name;
  const winners = new Winners(slug, family, query);
  const [title, about, gains, nets, upgrades, failed, worked] = Array.from({ length: 7 }, () => h("div"));
  title.className = "heading";
  let last = "";
  await every(5000, signal, async () => {
    const device = await get(path, signal);
    fillOnce(title, device.state, h("h1", {}, slug), state(device.state),
      h("a.button", { href: at("#/compare", { a: slug, family }) }, "Compare"),
      h("a.button.main", { href: at("#/new", { device: slug, family }) }, "Tune sizes"));
    fillOnce(about, JSON.stringify([device.name, device.driver, device.stations.map((s) => [s.worker, s.state])]), identity(device));
    // Whatever a device has begun or ended may have changed its table.
    const now = JSON.stringify([device.tuned, device.stations.map((s) => [s.job, s.problem])]);
    if (now === last) return;
    const [{ entries }, { networks: found }, failures, { hours: busy }, under, { checks }] = await Promise.all([
      get(at(`${path}/winners`, { family }), signal), get(`${path}/networks`, signal), get(`${path}/failures`, signal), get(`${path}/hours`, signal),
      get(at(`${path}/drivers`, { family }), signal), get(`${path}/speed`, signal),
    ]);
    const calls = new Map(found.flatMap(({ layers }) => layers.map((layer) => [layer.shape, layer.calls])));
    fill(gains, entries.length ? overview(slug, family, entries, family === "gemm" ? calls : new Map()) : null);
    fill(nets, family === "gemm" ? networks(slug, found) : null);
    fill(upgrades, drivers(slug, family, under));
    fill(failed, failing(path, failures));
    fill(worked, hours(slug, busy, checks));
    winners.update(entries);
    last = now;
  }, connected);
  const tabs = h("nav.tabs", { "aria-label": "Kernel family" }, families.map(({ name }) =>
    h("a", { href: at(`#/device/${slug}`, { family: name }), "aria-current": name === family && "true" }, name)));
  const actions = h("div.actions", {}, finder(slug, family, known.shape_examples[0]), downloads(slug, family, formats));
  fill(place, title, about, tabs, actions, gains, nets, winners.element, upgrades, failed, worked);
}

function fillOnce(element, version, ...children) {
  if (element.dataset.version === version) return;
  element.dataset.version = version;
  fill(element, ...children);
}

const identity = (device) => facts([
  ["Name", device.name],
  ["Vendor", device.vendor],
  ["Profile", device.family],
  ["Driver", device.driver],
  ["Workers", device.stations.map((one) => `${one.worker} (${one.state})`).join(", ") || "none"],
]);

function downloads(slug, family, formats) {
  const error = h("p.error", { role: "alert" });
  const load = async (format) => {
    error.textContent = "";
    await download(at(`api/export/${format}`, { device: slug, family })).catch((e) => (error.textContent = told(e)));
  };
  return h("div.downloads", { role: "group", "aria-label": "Download the table" }, h("span", {}, "Download the table"),
    formats.filter((one) => one.families.includes(family)).map(({ name, title }) =>
      h("button", { type: "button", onclick: () => load(name) }, title)), error);
}

// How trials ended, and what searches leave out.
function failing(path, { trials, repeats, reasons, quarantined, total, last_measured }) {
  const all = Object.values(trials).reduce((sum, number) => sum + number, 0);
  if (!all && !repeats && !total) return [];
  const note = h("p.note", { role: "status" });
  const allow = async (item, button) => {
    button.disabled = true;
    const { family, shape, configuration: wanted } = item;
    const done = await post(`${path}/allow`, { family, shape, configuration: wanted }).then(() => true, (error) => void (note.textContent = told(error)));
    if (!done) button.disabled = false;
    else {
      button.closest("tr").remove();
      list.element.focus();
      note.textContent = "The next search of that size may try it again.";
    }
  };
  const states = Object.entries(trials).sort(([, a], [, b]) => b - a);
  const list = table("Configurations in quarantine", [
    { name: "Size", kind: "head", cell: ({ shape, family }) => [shape, h("small", {}, family)] },
    { name: "Reason", cell: ({ reason }) => state(reason) },
    { name: "Message", cell: ({ message }) => h("span.long", {}, message.slice(0, 300) || "–") },
    { name: "Configuration", cell: (item) => h("code.long", {}, configuration(item.configuration)) },
    { name: "Since", cell: ({ since }) => moment(since) },
    { name: "Action", cell: (item) => h("button", { type: "button", onclick: (event) => allow(item, event.target), "aria-label": `Allow again: ${item.shape} ${configuration(item.configuration)}` }, "Allow again") },
  ]);
  list.show(quarantined, (item) => JSON.stringify([item.shape, item.configuration, item.driver]));
  return h("section", {}, h("h2", {}, "Trials and failures"),
    facts([...states.map(([word, number]) => [word, `${number.toLocaleString("en")} (${((100 * number) / all).toFixed(1)}%)`]), ["Run again", repeats > 0 && `${count(repeats, "time")}, as in finals`], ["Last measured", moment(last_measured)]]),
    whyFailed(reasons),
    total > 0 && h("p", {}, `In quarantine: ${count(total, "configuration")} that crashed, hung or were lost, which searches leave out.`),
    total > 0 && list.element, note,
    total > quarantined.length && hint(`The newest ${quarantined.length} are shown.`));
}

function whyFailed(reasons) {
  if (!reasons.length) return null;
  const list = table("What trials failed with", [
    { name: "Message", kind: "head", cell: ({ message }) => h("span.long", {}, message || "no message") },
    { name: "State", cell: (reason) => state(reason.state) },
    { name: "Trials", kind: "number", cell: (reason) => reason.trials.toLocaleString("en") },
    { name: "Last", cell: (reason) => moment(reason.last_measured) },
  ]);
  list.element.classList.add("tall");
  list.show(reasons, (reason) => `${reason.state} ${reason.message}`);
  return h("details", {}, h("summary", {}, "Why trials failed"), list.element);
}
