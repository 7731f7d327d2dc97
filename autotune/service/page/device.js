// One device: who it is, its table of winners with filters and downloads, and the heat map.

import { at, download, every, get, sizeAddress, told } from "./api.js";
import { connected, facts, fill, h, hint, select, sizeLink, state, table } from "./dom.js";
import { gain, moment, rate, ratio, time } from "./format.js";
import { HeatMap } from "./heatmap.js";

// What each column shows of a winner, and by what it is sorted.
const columnsOf = (slug, family) => [
  { name: "Size", kind: "head", key: (e) => e.flops, cell: (e) => sizeLink(slug, family, e.shape) },
  { name: "Algorithm", key: (e) => e.configuration.algorithm, cell: (e) => h("code", {}, e.configuration.algorithm) },
  { name: "Time", kind: "number", key: (e) => e.time_ns, cell: (e) => time(e.time_ns) },
  { name: "Rate", kind: "number", key: (e) => e.gflops, cell: (e) => rate(e, e.time_ns) },
  { name: "Over default (95%)", kind: "number", key: (e) => e.gain_over_default, cell: gain },
  { name: "Over plainest", kind: "number", key: (e) => e.gain_over_baseline ?? 0, cell: (e) => (e.gain_over_baseline ? ratio(e.gain_over_baseline) : "–") },
  { name: "Samples", kind: "number", key: (e) => e.samples, cell: (e) => e.samples },
  { name: "Checked", kind: "number", key: (e) => e.verifications, cell: (e) => e.verifications },
  { name: "Verdict", key: (e) => e.verdict, cell: (e) => e.verdict },
  { name: "Measured", key: (e) => e.provenance.measured_at, cell: ({ provenance: p }) => h("span", { title: `driver ${p.driver}` }, moment(p.measured_at)) },
];

export async function deviceView(place, slug, query, signal) {
  const [{ families }, { formats }] = await Promise.all(["api/families", "api/export"].map((path) => get(path, signal)));
  const known = families.find(({ name }) => name === (query.get("family") ?? "gemm")) ?? families[0];
  const family = known.name;
  const winners = new Winners(slug, known, formats);
  const title = h("div.heading");
  const about = h("div");
  let last = "";
  await every(5000, signal, async () => {
    const device = await get(`api/devices/${encodeURIComponent(slug)}`, signal);
    fillOnce(title, device.state, h("h1", {}, slug), state(device.state), h("a.button", { href: at("#/new", { device: slug, family }) }, "Tune sizes"));
    fillOnce(about, JSON.stringify([device.name, device.driver, device.stations.map((s) => [s.worker, s.job])]), identity(device));
    // Whatever a device has begun or ended may have changed its table.
    const now = JSON.stringify([device.tuned, device.stations.map((s) => [s.job, s.problem])]);
    if (now === last) return;
    winners.update((await get(at(`api/devices/${encodeURIComponent(slug)}/winners`, { family }), signal)).entries);
    last = now;
  }, connected);
  const tabs = h("nav.tabs", { "aria-label": "Kernel family" }, families.map(({ name }) =>
    h("a", { href: at(`#/device/${slug}`, { family: name }), "aria-current": name === family && "true" }, name)));
  fill(place, title, about, tabs, winners.element);
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

class Winners {
  constructor(slug, { name, axes, shape_examples }, formats) {
    Object.assign(this, { slug, formats, family: name, axes, examples: shape_examples, entries: [] });
    this.element = h("div.winners");
    this.filter = { text: "", algorithm: "", type: "", verdict: "" };
    this.columns = columnsOf(slug, name);
    this.order = { column: this.columns[0], down: false };
  }

  update(entries) {
    const words = (of) => JSON.stringify([of.map((e) => e.configuration.algorithm), of.map(typeOf), of.map((e) => e.verdict)].map((w) => [...new Set(w)].sort()));
    const isNew = !this.list || words(entries) !== words(this.entries);
    this.entries = entries;
    if (isNew) this.build();
    if (!entries.length) return;
    this.map.update(entries);
    this.show();
  }

  // Anew when there is something else to filter by.
  build() {
    if (!this.entries.length) {
      fill(this.element, h("section", {}, hint(`Nothing of ${this.family} is tuned on this device yet.`)), this.find());
      return;
    }
    this.filter = { text: "", algorithm: "", type: "", verdict: "" };
    const button = (column) => h("button.sort", { type: "button", onclick: () => this.sort(column) }, column.name);
    this.list = table(`Tuned sizes of ${this.family} on ${this.slug}`, this.columns.map((column) => ({ ...column, name: button(column) })));
    this.total = h("p.summary", { role: "status" });
    this.map = new HeatMap(this.slug, this.family, this.axes);
    fill(this.element,
      h("section", {},
        h("div.heading", {}, h("h2", {}, "Tuned table"), this.total),
        this.filters(), this.list.element, this.downloads()),
      this.map.element, this.find());
  }

  filters() {
    const of = (key) => [...new Set(this.entries.map(key))].sort();
    const choose = (text, name, values) =>
      values.length > 1 && h("label", {}, `${text} `, select(name, [["", "all"], ...values.map((v) => [v, v])], this.filter[name], (value) => this.narrow(name, value)));
    return h("div.filters", {},
      h("label", {}, "Size ", h("input", { type: "search", placeholder: "such as 4096", oninput: (event) => this.narrow("text", event.target.value.trim().toLowerCase()) })),
      choose("Algorithm", "algorithm", of((e) => e.configuration.algorithm)),
      choose("Type", "type", of(typeOf)),
      choose("Verdict", "verdict", of((e) => e.verdict)));
  }

  narrow(name, value) {
    this.filter[name] = value;
    this.show();
  }

  sort(column) {
    this.order = { column, down: this.order.column === column && !this.order.down };
    this.show();
  }

  show() {
    const { text, algorithm, type, verdict } = this.filter;
    const kept = this.entries.filter((e) =>
      e.shape.includes(text) && (!algorithm || e.configuration.algorithm === algorithm) && (!type || typeOf(e) === type) && (!verdict || e.verdict === verdict));
    const { key } = this.order.column;
    const sign = this.order.down ? -1 : 1;
    kept.sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    this.columns.forEach((column, index) => {
      const head = this.list.head.children[index];
      if (column === this.order.column) head.setAttribute("aria-sort", this.order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.list.show(kept, (e) => e.shape);
    this.total.textContent = kept.length === this.entries.length ? `${kept.length} sizes` : `${kept.length} of ${this.entries.length} sizes`;
  }

  downloads() {
    const error = h("p.error", { role: "alert" });
    const load = async (format) => {
      error.textContent = "";
      await download(at(`api/export/${format}`, { device: this.slug, family: this.family })).catch((e) => (error.textContent = told(e)));
    };
    return h("div.downloads", { role: "group", "aria-label": "Download the table" }, h("span", {}, "Download the whole table"),
      this.formats.map(({ name, title }) => h("button", { type: "button", onclick: () => load(name) }, title)), error);
  }

  // Any size, tuned or not.
  find() {
    const field = h("input", { name: "shape", required: true, placeholder: this.examples[0] ?? "", "aria-label": "Size" });
    const go = (event) => {
      event.preventDefault();
      location.hash = sizeAddress(this.slug, this.family, field.value.trim());
    };
    return h("section", {}, h("h2", {}, "Look up a size"), h("form.filters", { onsubmit: go }, field, h("button", { type: "submit" }, "Look up")));
  }
}

const typeOf = (entry) => entry.problem.mode ?? entry.problem.dtype ?? "";
