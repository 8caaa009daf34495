// Axes of charts: from numbers and names to pixels, ticks, and numbers as words.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const asColour = (name) => (PALETTE.includes(name) ? `var(--${name})` : name);

function node(name, attributes = {}, style = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  Object.assign(made.style, style);
  if (text) made.textContent = text;
  return made;
}

// `largest`: of the numbers beside it, which have the same unit.
function shown(value, axis = {}, largest = Math.abs(value)) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (axis.tickformat === "time") {
    const [unit, factor] = largest >= 1 ? ["s", 1] : largest >= 1e-4 || !largest ? ["ms", 1e3] : ["µs", 1e6];
    return `${shown(value * factor)} ${unit}`;
  }
  if (axis.tickformat) return +(100 * value).toPrecision(4) + " %"; // no fewer digits: ticks every 2.5 % would look uneven
  const size = Math.abs(value);
  if (size >= 1e9) return +(value / 1e9).toPrecision(4) + " G";
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + " M";
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(4));
}

// -- axes -------------------------------------------------------------------------------------------------------------

function evenTicks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999), found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n++) found.push(+(n * step).toPrecision(12));
  return found;
}

class Scale {
  constructor(axis, values, from, until, { zero = false, padding = 0.04, zoomed = null } = {}) {
    Object.assign(this, { axis, from, until, log: axis.type === "log", names: axis.type === "category" ? axis.categoryarray : null });
    const put = (value) => (this.log ? (value > 0 ? Math.log10(value) : NaN) : value);
    this.put = put;
    if (this.names) { this.places = new Map(this.names.map((name, n) => [name, n])); this.low = -0.5; this.high = this.names.length - 0.5; }
    else if (axis.range) [this.low, this.high] = axis.range;
    else {
      let low = Infinity, high = -Infinity;
      for (const value of values) { const at = put(value); if (value !== null && Number.isFinite(at)) { low = Math.min(low, at); high = Math.max(high, at); } }
      if (low > high) [low, high] = [0, 1];
      if ((zero || axis.rangemode === "tozero") && !this.log) { low = Math.min(low, 0); high = Math.max(high, 0); }
      if (low === high) { const half = this.log ? 0.3 : Math.abs(low) * 0.1 || 0.5; low -= half; high += half; }
      const room = (high - low) * padding;
      this.low = low === 0 && !this.log ? 0 : low - room;
      this.high = high + room;
    }
    if (zoomed && !this.names) [this.low, this.high] = zoomed;
    if (axis.autorange === "reversed") [this.low, this.high] = [this.high, this.low];
  }

  value(given) { return this.names ? this.places.get(given) ?? NaN : this.put(given); }
  at(given) { return given === null ? NaN : this.place(this.value(given)); }
  place(value) { return this.from + ((value - this.low) / (this.high - this.low)) * (this.until - this.from); }
  base(given) { return this.log && !(given > 0) ? this.from : this.at(given); } // where a bar begins: zero is not on a logarithmic axis
  back(pixel) { return this.low + ((pixel - this.from) / (this.until - this.from)) * (this.high - this.low); }
  get step() { return Math.abs(this.until - this.from) / Math.abs(this.high - this.low); }

  // [place, label] of each tick, at least `room` pixels apart; given ones at least `apart` pixels.
  ticks(room, apart = 0) {
    const most = Math.max(2, Math.floor(Math.abs(this.until - this.from) / room)), [low, high] = [Math.min(this.low, this.high), Math.max(this.low, this.high)];
    if (this.axis.tickvals && !this.names) {
      let last = -Infinity;
      const given = this.axis.tickvals.map((value, n) => [this.at(value), this.axis.ticktext[n]]).filter(([at]) => Number.isFinite(at));
      return given.filter(([at]) => Math.abs(at - last) >= apart && ((last = at), true));
    }
    if (this.names) {
      const every = Math.ceil(this.names.length / most), labels = this.axis.ticktext ?? this.names;
      return this.names.map((name, n) => [this.place(n), labels[n]]).filter((_, n) => n % every === 0);
    }
    if (this.log) {
      const factors = high - low < 1.2 ? [1, 2, 3, 5, 7] : high - low < 2.5 ? [1, 2, 5] : [1], found = [];
      for (let power = Math.floor(low); power <= Math.ceil(high); power++) for (const factor of factors) found.push(factor * 10 ** power);
      const inside = found.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9), every = Math.ceil(inside.length / (most * 1.5));
      // In a short range there may be none of these: then ticks are as on a linear axis.
      const chosen = inside.length > 1 ? inside.filter((_, n) => n % every === 0) : evenTicks(10 ** low, 10 ** high, most);
      return chosen.map((value) => [this.at(value), shown(value, this.axis, 10 ** high)]);
    }
    const found = evenTicks(low, high, most), largest = Math.max(...found.map(Math.abs));
    return found.map((value) => [this.place(value), shown(value, this.axis, largest)]);
  }
}
