// The table of winners of a device: filters and order are kept in the address.

import { at, sizeAddress } from "./api.js";
import { fill, h, hint, paged, select, sizeLink, table } from "./dom.js";
import { count, gain, moment, rate, ratio, time } from "./format.js";

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

const typeOf = (entry) => entry.problem.mode ?? entry.problem.dtype ?? "";
const FILTERS = { algorithm: (e) => e.configuration.algorithm, type: typeOf, verdict: (e) => e.verdict };

export class Winners {
  constructor(slug, family, query) {
    Object.assign(this, { slug, family, query, entries: [] });
    this.element = h("section.winners");
    this.columns = columnsOf(slug, family);
  }

  update(entries) {
    const words = (of) => JSON.stringify(Object.values(FILTERS).map((key) => [...new Set(of.map(key))].sort()));
    const isNew = !this.list || words(entries) !== words(this.entries);
    this.entries = entries;
    if (isNew) this.build();
    if (entries.length) this.show();
  }

  // Anew when there is something else to filter by.
  build() {
    if (!this.entries.length) {
      fill(this.element, hint(`Nothing of ${this.family} is tuned on this device yet.`));
      return;
    }
    const button = (column) => h("button.sort", { type: "button", onclick: () => this.sort(column) }, column.name);
    this.list = table(`Tuned sizes of ${this.family} on ${this.slug}`, this.columns.map((column) => ({ ...column, head: button(column) })));
    this.list.element.classList.add("tall");
    this.total = h("p.summary", { role: "status" });
    this.paged = paged(this.list, (e) => e.shape);
    fill(this.element, h("div.heading", {}, h("h2", {}, "Tuned table"), this.total), this.filters(), this.list.element, this.paged.more);
  }

  filters() {
    const choose = (text, name) => {
      const values = [...new Set(this.entries.map(FILTERS[name]))].sort();
      const options = [["", "all"], ...values.map((v) => [v, v])];
      return values.length > 1 && h("label", {}, `${text} `, select(name, options, this.query.get(name) ?? "", (value) => this.set(name, value)));
    };
    const field = h("input", { type: "search", value: this.query.get("size") ?? "", placeholder: "such as 4096", oninput: (event) => this.set("size", event.target.value.trim().toLowerCase()) });
    const order = select("order", this.columns.map(({ name }) => [name, name]), this.order().name, (name) => this.set("sort", name));
    return h("div.filters", {}, h("label", {}, "Size ", field),
      choose("Algorithm", "algorithm"), choose("Type", "type"), choose("Verdict", "verdict"), h("label.phone", {}, "Order ", order));
  }

  order = () => this.columns.find(({ name }) => name === this.query.get("sort")) ?? this.columns[0];

  // The address follows, so that it can be kept and sent; going back leads to what was before this view.
  set(name, value) {
    value ? this.query.set(name, value) : this.query.delete(name);
    history.replaceState(null, "", at(`#/device/${this.slug}`, Object.fromEntries(this.query)));
    this.show();
  }

  sort(column) {
    const isDown = this.order() === column && !this.query.get("down");
    isDown ? this.query.set("down", "1") : this.query.delete("down");
    this.set("sort", column.name);
  }

  show() {
    const text = this.query.get("size") ?? "";
    const isWanted = (e) => e.shape.includes(text) && Object.entries(FILTERS).every(([name, key]) => [null, "", key(e)].includes(this.query.get(name)));
    const [order, isDown] = [this.order(), Boolean(this.query.get("down"))];
    const kept = this.entries.filter(isWanted);
    kept.sort((a, b) => (isDown ? -1 : 1) * (order.key(a) < order.key(b) ? -1 : order.key(a) > order.key(b) ? 1 : 0));
    this.columns.forEach((column, index) => {
      const head = this.list.head.children[index];
      if (column === order) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.paged.show(kept);
    this.total.textContent = kept.length === this.entries.length ? count(kept.length, "size") : `${kept.length} of ${count(this.entries.length, "size")}`;
  }
}

// Any size, tuned or not.
export function finder(slug, family, example) {
  const field = h("input", { name: "shape", required: true, placeholder: example ?? "", "aria-label": "Size to look up" });
  const go = (event) => {
    event.preventDefault();
    location.hash = sizeAddress(slug, family, field.value.trim());
  };
  return h("form.filters", { onsubmit: go }, field, h("button", { type: "submit" }, "Look up"));
}
