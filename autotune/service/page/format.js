// Numbers in words, with their units.

const digits = (value, count = 4) => {
  const text = value.toPrecision(count);
  return text.includes("e") ? Number(text).toLocaleString("en", { maximumSignificantDigits: count }) : text;
};

export function time(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (ns >= size) return `${digits(ns / size)} ${unit}`;
  return `${digits(ns)} ns`;
}

// Short, for axes: no zeros at the end.
export function tick(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (ns >= size) return `${+(ns / size).toPrecision(3)} ${unit}`;
  return `${+ns.toPrecision(3)} ns`;
}

// Operations in a nanosecond are GFLOP/s. Where there is less than one for each byte moved, bytes tell more.
export function rate({ flops, bytes_moved }, ns) {
  if (!ns) return "–";
  if (flops < bytes_moved) return `${digits(bytes_moved / ns)} GB/s`;
  return flops / ns >= 1000 ? `${digits(flops / ns / 1000)} TFLOP/s` : `${digits(flops / ns)} GFLOP/s`;
}

export const ratio = (value) => `${digits(value, 3)}×`;

export function gain(entry) {
  if (entry.verdict === "tie") return "1× (tie)";
  if (entry.verdict === "default failed") return "default fails";
  if (entry.is_default) return "1× (is default)";
  if (!entry.samples) return "provisional";
  if (entry.gain_low === null || entry.gain_high === null) return ratio(entry.gain_over_default);
  // A digit more where the bounds would look alike.
  const [low, high] = [entry.gain_low, entry.gain_high];
  const places = digits(low, 3) === digits(high, 3) ? 4 : 3;
  return `${digits(entry.gain_over_default, places)}× (${digits(low, places)} to ${digits(high, places)})`;
}

export const percent = (share) => `${Math.round(share * 100)}%`;

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${+(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// From one moment to another, or until now.
export const between = (begin, end) => duration(Math.max(0, ((end ? Date.parse(end) : Date.now()) - Date.parse(begin)) / 1000));

export const moment = (iso) => (iso ? iso.replace("T", " ").slice(0, 16) + " UTC" : "–");

export function configuration(values) {
  const { algorithm, ...rest } = values;
  return `${algorithm}(${Object.entries(rest).map(([name, value]) => `${name}=${value}`).join(", ")})`;
}

// {"too slow": 3} as "3 too slow"
export function failures(states) {
  const found = Object.entries(states ?? {}).filter(([, number]) => number);
  return found.length ? found.map(([word, number]) => `${number} ${word}`).join(", ") : "none";
}
