// The form of a new job.

import { get, post, told } from "./api.js";
import { howToBegin } from "./devices.js";
import { fill, h, hint, select } from "./dom.js";
import { count } from "./format.js";

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
  const shapes = h("textarea", { name: "shapes", rows: 5, spellcheck: "false", autocapitalize: "off", "aria-describedby": "shapes-hint" });
  const meaning = h("p.hint", { id: "shapes-hint" });
  const networks = h("fieldset", {}, h("legend", {}, "Presets: the products of a network"), h("div.choices", {}, presets.map(choice)));
  const ofFamily = (name) => {
    const known = families.find((one) => one.name === name);
    shapes.placeholder = known.shape_examples.join("\n");
    meaning.textContent = `One a line: ${known.shape_format}; then xCOUNT and a label, if wanted.`;
    networks.hidden = networks.disabled = name !== "gemm";
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
    h("label", {}, "Sizes", shapes), meaning, networks,
    h("div.pair", {}, h("label", {}, "Trials for each size", trials), h("label", {}, "Minutes for the whole job", minutes)),
    hint("The search ends at whichever limit comes first. With neither, 100 trials a size are made."),
    error, h("p.buttons", {}, button));
  fill(place, heading, form);
}

function choice(preset) {
  return h("label.choice", {},
    h("input", { type: "checkbox", name: "presets", value: preset.name }),
    h("span", {}, preset.name, h("small", {}, `${preset.meaning}, ${count(preset.shapes, "size")}`)));
}

function asked(data) {
  const lines = data.get("shapes").split("\n").map((line) => line.trim()).filter(Boolean);
  const form = { device: data.get("device"), family: data.get("family"), shapes: lines, presets: data.getAll("presets") };
  if (data.get("trials")) form.trials = Number(data.get("trials"));
  if (Number(data.get("minutes")) > 0) form.seconds = Number(data.get("minutes")) * 60;
  return form;
}
