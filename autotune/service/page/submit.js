// The form of a new job.

import { get, pause, post, told } from "./api.js";
import { howToBegin } from "./devices.js";
import { fill, h, hint, select } from "./dom.js";
import { count, duration } from "./format.js";

const CHECK_MS = 300;
const LINE_PX = 20; // as in the style sheet
const MOST_FAULTS = 50;

export async function submitView(place, _, query, signal) {
  const [{ devices }, { presets }, { families }] = await Promise.all(
    ["api/devices", "api/presets", "api/families"].map((path) => get(path, signal)));
  const heading = h("h1", {}, "New job");
  if (!devices.length) {
    fill(place, heading, h("p.hint", {}, "No device is known yet."), howToBegin());
    return;
  }
  const wanted = query.get("device") ?? devices.find((device) => device.state !== "offline")?.slug ?? devices[0].slug;
  const device = select("device", devices.map((one) => [one.slug, `${one.slug} (${one.state})`]), wanted);
  const shapes = h("textarea", { name: "shapes", rows: 5, spellcheck: "false", autocapitalize: "off", wrap: "off", "aria-describedby": "shapes-hint shapes-faults" });
  const faults = new Faults(shapes);
  const estimate = h("p.summary", { role: "status" });
  const meaning = h("p.hint", { id: "shapes-hint" });
  const choices = h("div");
  const networks = h("fieldset", {}, h("legend", {}, "Presets: the products of a network"), choices);
  const ofFamily = (name) => {
    const known = families.find((one) => one.name === name);
    shapes.placeholder = known.shape_examples.join("\n");
    meaning.textContent = `One a line: ${known.shape_format}; then xCOUNT and a label, if wanted.`;
    const own = presets.filter((preset) => preset.family === name);
    networks.hidden = networks.disabled = !own.length;
    fill(choices, ...grouped(own));
  };
  const first = families.some(({ name }) => name === query.get("family")) ? query.get("family") : "gemm";
  const family = select("family", families.map(({ name, meaning: text }) => [name, text ? `${name}: ${text}` : name]), first, ofFamily);
  ofFamily(first);
  shapes.value = query.get("shape") ?? "";
  const trials = h("input", { name: "trials", type: "number", min: 1, max: 1000000, value: 100, inputmode: "numeric" });
  const minutes = h("input", { name: "minutes", type: "number", min: 0, step: "any", inputmode: "decimal", placeholder: "no limit" });
  const error = h("p.error", { role: "alert" });
  const button = h("button.main", { type: "submit" }, "Submit job");
  const form = h("form.submit", {
    onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      error.textContent = "";
      try {
        const job = await post("api/jobs", asked(new FormData(form)));
        location.hash = `#/job/${job.id}`;
      } catch (refused) {
        error.textContent = told(refused);
        button.disabled = false;
      }
    },
  },
    h("div.pair", {}, h("label", {}, "Device", device), h("label", {}, "Family", family)),
    h("div.lines", {}, h("label", {}, "Sizes", shapes), faults.element), meaning, networks,
    h("div.pair", {}, h("label", {}, "Trials for each size", trials), h("label", {}, "Minutes for the whole job", minutes)),
    hint("The search ends at whichever limit comes first. With neither, 100 trials a size are made."),
    estimate, error, h("p.buttons", {}, button));
  fill(place, heading, form);
  const check = async (asking) => {
    const data = asked(new FormData(form));
    if (!data.shapes.length && !data.presets.length) return ["", []];
    return post("api/jobs/check", data, asking).then((found) => [outlook(found, data), found.faults], (refused) => [told(refused), []]);
  };
  let asking = new AbortController();
  const later = async () => {
    asking.abort();
    const { signal: own } = (asking = new AbortController());
    await pause(CHECK_MS, own);
    if (own.aborted || signal.aborted) return;
    const [words, wrong] = await check(own);
    if (own.aborted) return;
    estimate.textContent = words;
    faults.show(wrong);
  };
  form.addEventListener("input", later);
  later();
}

// What the job would do, in a line.
function outlook({ faults, sizes, left_out, seconds }, { trials }) {
  const long = seconds ? `about ${duration(seconds)} on one device` : trials ? `up to ${count(trials, "trial")} each; how long one takes is known after the first job` : "";
  const wrong = faults.length && `${count(faults.length, "line")} to correct`;
  const without = left_out.length && `${left_out.length} of the presets do not fit the device`;
  return [[count(sizes, "size"), sizes && long].filter(Boolean).join(", "), wrong, without].filter(Boolean).join("; ");
}

// What is wrong with lines of a text, beside each line, or below the text where there is no room; each leads to its line.
class Faults {
  constructor(text) {
    this.text = text;
    this.element = h("ul.faults", { id: "shapes-faults", "aria-live": "polite" });
    text.addEventListener("scroll", () => this.place());
    new ResizeObserver(() => this.place()).observe(text);
  }

  show(faults) {
    const shown = faults.slice(0, MOST_FAULTS);
    this.lines = shown.map(({ line }) => line);
    const rows = shown.map(({ line, message }) => h("li", {}, h("button.plain", { type: "button", title: message, onclick: () => this.go(line) }, `Line ${line}: ${message}`)));
    fill(this.element, rows, faults.length > shown.length && h("li.rest", {}, `and ${faults.length - shown.length} more`));
    faults.length ? this.text.setAttribute("aria-invalid", "true") : this.text.removeAttribute("aria-invalid");
    this.place();
  }

  // Only the style sheet knows whether they stand beside the text.
  place() {
    const { offsetTop, scrollTop, clientHeight } = this.text;
    this.lines?.forEach((line, index) => {
      const top = (line - 1) * LINE_PX - scrollTop;
      const { style, classList } = this.element.children[index];
      style.setProperty("top", `${offsetTop + top + 5}px`);
      classList.toggle("away", top < -LINE_PX / 2 || top > clientHeight - LINE_PX);
    });
  }

  go(line) {
    const lines = this.text.value.split("\n");
    const begin = lines.slice(0, line - 1).join("\n").length + (line > 1);
    this.text.focus();
    this.text.setSelectionRange(begin, begin + lines[line - 1].length);
    this.text.scrollTop = (line - 2) * LINE_PX;
  }
}

// Those of a language model are many: they fold.
function grouped(presets) {
  const boxes = (group) => h("div.choices", {}, presets.filter((preset) => preset.group === group).map(choice));
  return [...new Set(presets.map(({ group }) => group))].map((group) =>
    group ? h("details", {}, h("summary", {}, group), boxes(group)) : boxes(group));
}

function choice(preset) {
  return h("label.choice", {},
    h("input", { type: "checkbox", name: "presets", value: preset.name }),
    h("span", {}, preset.name, h("small", {}, `${preset.meaning}, ${count(preset.shapes, "size")}`)));
}

function asked(data) {
  const lines = data.get("shapes").split("\n").map((line) => line.replace(/\s+/g, " ").trim());
  const shapes = lines.some(Boolean) ? lines : [];
  const form = { device: data.get("device"), family: data.get("family"), shapes, presets: data.getAll("presets") };
  if (data.get("trials")) form.trials = Number(data.get("trials"));
  if (Number(data.get("minutes")) > 0) form.seconds = Number(data.get("minutes")) * 60;
  return form;
}
