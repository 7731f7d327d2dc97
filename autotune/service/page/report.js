// A report: what tuning gained on devices, from the data in its own file. autotune/export/report.py joins this module and
// those that it imports to one script; the service does not load it.

import { facts, fill, h, hint } from "./dom.js";
import { configuration, count } from "./format.js";
import { networks } from "./networks.js";
import { overview } from "./overview.js";
import { Winners } from "./winners.js";

const { devices, version } = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const tables = new Map();
const parse = (hash) => {
  const [path, query] = hash.replace(/^#\//, "").split("?");
  const [view, slug] = path.split("/");
  return { view, slug, query: new URLSearchParams(query ?? "") };
};

function device(known) {
  const { slug, families } = known;
  const names = Object.keys(families);
  return h("div", {}, h("h1", {}, `Tuning of ${slug}`), identity(known, names.flatMap((name) => families[name].entries)),
    !names.length && hint("Nothing is tuned on this device yet."),
    names.map((name) => family(slug, name, families[name])));
}

function family(slug, name, { entries, networks: found }) {
  const calls = new Map(found.flatMap(({ layers }) => layers.map((layer) => [layer.shape, layer.calls])));
  const { slug: named, query } = parse(location.hash);
  const isNamed = named === slug && query.get("family") === name;
  const winners = new Winners(slug, name, isNamed ? query : new URLSearchParams({ family: name }));
  winners.columns.find((column) => column.name === "Algorithm").cell = ({ configuration: values }) =>
    h("details", {}, h("summary", {}, h("code", {}, values.algorithm)), h("code.long", {}, configuration(values)));
  winners.update(entries);
  tables.set(`${slug} ${name}`, winners);
  return [h("h2.family", {}, name), overview(slug, name, entries, calls), networks(slug, found), winners.element];
}

function identity({ name, vendor, model, family: profile, driver, version: standard, limits, trials, repeats }, entries) {
  const days = entries.map(({ provenance }) => provenance.measured_at.slice(0, 10)).sort();
  const each = (of) => [...new Set(entries.map(({ provenance }) => of(provenance)))].sort().join(", ");
  const total = Object.values(trials).reduce((sum, number) => sum + number, 0);
  const ended = Object.entries(trials).sort(([, a], [, b]) => b - a).map(([word, number]) => `${number.toLocaleString("en")} ${word}`);
  return facts([
    ["Name", name || `${vendor} ${model}`],
    ["Vendor", vendor],
    ["Profile", profile],
    ["OpenCL", standard],
    ["Driver", driver],
    ["Driver that measured", each((made) => made.driver) !== driver && each((made) => made.driver)],
    ["Compute units", limits.compute_units],
    ["Local memory", memory(limits.local_memory_bytes)],
    ["Global memory", memory(limits.global_memory_bytes)],
    ["Measured", [days[0], days[0] !== days.at(-1) && h("small", {}, `to ${days.at(-1)}`)]],
    ["Measured by autotune", each((made) => made.tool_version)],
    ["Trials", total > 0 && [count(total, "trial"), h("small", {}, ended.join(", "))]],
    ["Run again", repeats > 0 && `${count(repeats, "time")}, as in finals`],
  ]);
}

function memory(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (bytes >= size) return `${+(bytes / size).toPrecision(4)} ${unit}`;
  return `${bytes} bytes`;
}

// Where the service would open the view of a size, the table shows its row, if it is tuned.
function rowOf(hash) {
  const { view, slug, query } = parse(hash);
  const winners = view === "size" && tables.get(`${slug} ${query.get("family")}`);
  const shape = query.get("shape");
  return winners && winners.entries.some((entry) => entry.shape === shape) ? { winners, shape } : null;
}

function follow() {
  const row = rowOf(location.hash);
  if (!row) return;
  row.winners.element.querySelector("input[type=search]").value = row.shape;
  row.winners.set("size", row.shape);
  row.winners.element.scrollIntoView();
}

fill(main, h("div.view", {}, devices.map(device), !devices.length && hint("Nothing is stored yet."), hint(`Written by autotune ${version}.`)));
for (const link of main.querySelectorAll("a")) if (!rowOf(link.hash)) link.removeAttribute("href");
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => {
  for (const more of main.querySelectorAll(".more button")) more.click();
  for (const closed of main.querySelectorAll(".networks details")) closed.open = true;
});
