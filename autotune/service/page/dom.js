// Elements. Every text goes in as a text node: nothing that the API tells ever becomes markup.

import { sizeAddress } from "./api.js";

const MORE_ROWS = 1000;

// h("a.quiet", { href: "#/jobs" }, "Jobs"): classes after dots; "on..." are listeners; null and false are left out.
export function h(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" && name !== "option" && name !== "progress") element.value = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  fill(element, ...children);
  return element;
}

// What was there is replaced.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// Rows in the place of others. A row whose item has not changed stays as it is, with the focus in it.
function keep(parent, items, keyOf, build) {
  const known = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const place = active?.closest("[data-key]");
  const rows = items.map((item) => {
    const key = String(keyOf(item));
    const state = JSON.stringify(item);
    const old = known.get(key);
    if (old && old.dataset.state === state) return old;
    const row = build(item);
    row.dataset.key = key;
    row.dataset.state = state;
    return row;
  });
  const isSame = rows.length === parent.children.length && rows.every((row, i) => row === parent.children[i]);
  if (isSame) return;
  parent.replaceChildren(...rows);
  if (active && !document.contains(active) && place) {
    const again = rows.find((row) => row.dataset.key === place.dataset.key);
    again?.querySelector("a, button")?.focus();
  } else active?.focus();
}

// A table that scrolls within itself; on a phone each row is a card. Columns: { name, cell, kind, head }, where cell makes
// the content of a cell from an item, the kind is "number", aligned to the right, or "head", the one that names the row
// (with the column's name on its card if isTold), and head stands in place of the name. A cell without a value has a dash,
// and no place on a card. Roles are named since a browser forgets those of what is no table to the eye.
export function table(caption, columns, properties = {}) {
  const body = h("tbody", { role: "rowgroup" });
  const head = h("tr", { role: "row" }, columns.map(({ name, kind, head: shown }) =>
    h(kind === "number" ? "th.number" : "th", { scope: "col", role: "columnheader" }, shown ?? name)));
  const row = (item) => h("tr", { role: "row" }, columns.map(({ name, cell, kind, isTold }) => {
    const content = cell(item);
    const [isHead, isNone] = [kind === "head", content === "–"];
    const element = { head: "th", number: "td.number" }[kind] ?? "td";
    return h(isNone ? `${element}.none` : element, { scope: isHead && "row", role: isHead ? "rowheader" : "cell", "data-label": (!isHead || isTold) && name }, h("div", {}, content));
  }));
  const whole = h("table.cards", { role: "table", ...properties }, h("caption.hidden", {}, caption), h("thead", { role: "rowgroup" }, head), body);
  if (properties.class) whole.className = `cards ${properties.class}`;
  const show = (items, keyOf) => keep(body, items, keyOf, row);
  return { element: scroll(caption, whole), head, show };
}

// The first rows of a table, and below it a button for the rest, or for a thousand more.
export function paged(list, keyOf) {
  let most = matchMedia("(max-width: 640px)").matches ? 12 : 50;
  const more = h("p.more");
  const show = (items) => {
    list.show(items.slice(0, most), keyOf);
    const further = () => {
      most += MORE_ROWS;
      show(items);
      list.element.focus(); // the button may be gone
    };
    const words = items.length - most > MORE_ROWS ? `Show ${MORE_ROWS} more of ${items.length}` : `Show all ${items.length}`;
    fill(more, items.length > most && h("button", { type: "button", onclick: further }, words));
  };
  return { more, show };
}

export function scroll(label, content) {
  return h("div.scroll", { role: "region", tabindex: "0", "aria-label": label }, content);
}

export function facts(pairs, kind = "") {
  const shown = pairs.filter(([, value]) => value !== null && value !== "" && value !== undefined && value !== false);
  return h(kind ? `dl.facts.${kind}` : "dl.facts", {}, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// A word with a mark in its color; the word alone tells as much.
export const state = (word) => h(`span.state.${word.replaceAll(" ", "-")}`, {}, word);

// A bar with a number beside it, of a share from 0 to 1.
export function bar(share, text = "", kind = "") {
  const drawn = h(kind ? `span.bar.${kind}` : "span.bar", { "aria-hidden": "true" });
  drawn.style.setProperty("width", `${(100 * share).toFixed(1)}%`);
  return h("div.share", {}, h("span.room", {}, drawn), text && h("span", {}, text));
}

// Copies a text, and tells so in its own place. Where the browser permits no copying, the text is selected instead.
export function copy(text, words = "Copy") {
  const button = h("button", { type: "button" }, words);
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    button.textContent = done ? "Copied" : "Select the text and copy it";
    setTimeout(() => (button.textContent = words), 2500);
  });
  return button;
}

// A text to copy: shown, with the button beside its name.
export const snippet = (name, text) => h("div.snippet", {}, h("div.heading", {}, h("strong", {}, name), copy(text, `Copy`)), h("pre", { tabindex: "0", role: "region", "aria-label": name }, text));

// A name that may go on in a new line at its underscores.
export const breakable = (name) => name.split("_").map((part, index) => (index ? [h("wbr"), `_${part}`] : part));

export const hint = (text) => h("p.hint", {}, text);

export function select(name, options, chosen, onchange) {
  const choices = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { name, onchange: (event) => onchange?.(event.target.value) }, choices);
}

export const sizeLink = (device, family, shape) => h("a", { href: sizeAddress(device, family, shape) }, shape);

// Whether what is shown is what there is.
export function connected(isLost) {
  const place = document.getElementById("connection");
  const text = isLost ? "connection lost, trying again" : "live";
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("lost", isLost);
}
