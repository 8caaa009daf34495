// Draws charts as SVG: lines, points, bars, bands, areas and heat maps on two axes, as paceline.charts.browser describes them.
// Colours are CSS variables, so that a theme changes without drawing again. Series differ by shape or texture as well as by colour.
"use strict";

const DASHED = { solid: "", dash: "7 4", dot: "2 4", dashdot: "11 4 2 4", longdash: "14 4", longdashdot: "14 3 4 3" };
const SHAPES = ["M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "M-3 -3h6v6h-6z", "M0 -4.4l4 7.4h-8z", "M0 -4.6l4.2 4.6l-4.2 4.6l-4.2 -4.6z", "M-4 -1h3v-3h2v3h3v2h-3v3h-2v-3h-3z", "M0 4.4l-4 -7.4h8z", "M-4 -4l8 8m0 -8l-8 8", "M-4 0h8"];
const WEAVES = ["", "M-1 7L7 -1M-1 1L1 -1M5 7L7 5", "M1.5 1.5h2v2h-2z", "M-1 -1L7 7M-1 5L1 7M5 -1L7 1", "M0 3h6", "M3 0v6", "M-1 7L7 -1M-1 -1L7 7", "M0 0h3v3h-3z"];

// -- a chart ----------------------------------------------------------------------------------------------------------

let charted = 0;
const letters = document.createElement("canvas").getContext("2d");

class ChartView {
  constructor(place) {
    this.place = place;
    this.id = `c${++charted}`;
    this.hidden = new Set();
    this.zoomed = null;
    this.listen();
    new ResizeObserver(() => { if (this.figure && place.clientWidth !== this.width) this.draw(this.figure); }).observe(place);
  }

  draw(figure) {
    this.figure = figure;
    const { place } = this;
    this.width = place.clientWidth || 600;
    this.height = figure.height;
    letters.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const traces = figure.data.map((trace, number) => ({ ...trace, number, style: this.styleOf(figure, number), gone: this.hidden.has(trace.name) }));
    this.traces = traces;
    const visible = traces.filter((trace) => !trace.gone);
    this.heat = traces.find((trace) => trace.type === "heatmap");
    this.stack(visible, figure.layout);
    this.measure(visible, figure.layout);
    this.svg = node("svg", { width: this.width, height: this.height, viewBox: `0 0 ${this.width} ${this.height}`, "aria-hidden": "true" });
    this.defs = node("defs");
    const clip = node("clipPath", { id: this.id + "-clip" });
    clip.append(node("rect", { x: this.left, y: this.top, width: Math.max(this.right - this.left, 1), height: Math.max(this.bottom - this.top, 1) }));
    this.defs.append(clip);
    this.inside = node("g", { "clip-path": `url(#${this.id}-clip)` });
    this.svg.append(this.defs);
    this.drawAxes();
    for (const shape of figure.layout.shapes ?? []) this.drawShape(shape);
    const order = (trace) => (trace.fill === "toself" ? 0 : trace.stackgroup ? 1 : trace.type === "bar" ? 2 : trace.type === "heatmap" ? 2 : /lines/.test(trace.mode) ? 3 : 4);
    for (const trace of [...visible].sort((a, b) => order(a) - order(b))) this.drawTrace(trace);
    this.svg.append(this.inside);
    for (const label of figure.layout.annotations ?? []) this.drawLabel(label);
    place.replaceChildren(...(figure.layout.showlegend ? [this.legend()] : []), this.svg);
    if (this.zoomed) this.offerReset();
  }

  // Of several series, each has a shape along its line, or a texture, of its own.
  styleOf(figure, number) {
    const trace = figure.data[number], named = [...new Set(figure.data.filter((one) => one.fill !== "toself").map((one) => one.name))];
    const at = Math.max(named.indexOf(trace.name), 0), alone = named.length < 2;
    const given = DASHED[trace.line?.dash] ?? "", plain = figure.data.every((one) => one.marker || (one.line?.dash ?? "solid") === "solid");
    return { shape: SHAPES[at % SHAPES.length], weave: alone ? "" : WEAVES[at % WEAVES.length], dash: plain && !trace.marker ? Object.values(DASHED)[at % 6] : given };
  }

  stack(visible, layout) {
    const heights = new Map();
    this.groups = [...new Set(visible.filter((trace) => trace.type === "bar").map((trace) => trace.offsetgroup ?? trace.name))];
    for (const trace of visible) {
      if (trace.type !== "bar" && !trace.stackgroup) continue;
      const across = trace.orientation === "h", places = across ? trace.y : trace.x, lengths = across ? trace.x : trace.y;
      trace.places = places;
      trace.bases = lengths.map((length, n) => {
        if (layout.barmode === "group" && !trace.stackgroup) return 0;
        const key = `${places[n]}/${length < 0}`, base = heights.get(key) ?? 0;
        heights.set(key, base + (length ?? 0));
        return base;
      });
      trace.tops = lengths.map((length, n) => (length === null ? null : trace.bases[n] + length));
    }
  }

  measure(visible, layout) {
    const collect = (which) => visible.flatMap((trace) => {
      if (trace.type === "heatmap") return trace[which];
      const along = (trace.orientation === "h") === (which === "x");
      if (trace.tops && along) return [...trace.tops, ...trace.bases];
      const error = which === "y" && trace.error_y ? trace.y.flatMap((y, n) => [y + (trace.error_y.array[n] ?? 0), y - (trace.error_y.arrayminus[n] ?? 0)]) : [];
      return [...trace[which], ...error];
    });
    const bars = visible.filter((trace) => trace.type === "bar"), across = bars.some((trace) => trace.orientation === "h");
    const wide = (words) => letters.measureText(words).width;
    this.top = 8;
    this.bottom = this.height - (layout.xaxis.title?.text ? 42 : 24);
    this.right = this.width - (this.heat ? 64 : 14);
    // Room for the words at the ends of bars.
    if (across && layout.annotations?.length) this.right -= Math.max(0, Math.max(...layout.annotations.map((label) => wide(label.text))) - this.width * 0.04);
    const yValues = collect("y"), xValues = collect("x");
    this.y = new Scale(layout.yaxis, yValues, this.bottom, this.top, { zero: (bars.length && !across) || visible.some((trace) => trace.stackgroup), padding: this.heat ? 0 : 0.05 });
    this.yTicks = this.y.ticks(this.y.names ? 15 : 40);
    const label = Math.min(Math.max(...this.yTicks.map(([, words]) => wide(words)), 10), this.width * 0.38);
    this.left = label + 12 + (layout.yaxis.title?.text ? 16 : 0);
    this.labelRoom = label;
    // A bar reaches half a place to each side.
    const places = bars.length && !across && layout.xaxis.type !== "category" ? [...new Set(xValues)].sort((a, b) => a - b) : [];
    const least = places.slice(1).reduce((gap, value, n) => Math.min(gap, value - places[n]), Infinity);
    this.place1 = Number.isFinite(least) ? least : 1;
    const apart = this.heat && this.heat.x.length > 1 && typeof this.heat.x[0] === "number" ? (this.heat.x.at(-1) - this.heat.x[0]) / (this.heat.x.length - 1) / 2 : 0;
    const around = apart ? [this.heat.x[0] - apart, this.heat.x.at(-1) + apart] : places.length ? [places[0] - this.place1 / 2, places.at(-1) + this.place1 / 2] : [];
    this.x = new Scale(layout.xaxis, [...xValues, ...around], this.left, this.right, { zero: across, padding: places.length || this.heat || visible.some((trace) => trace.stackgroup) ? 0 : layout.annotations?.length ? 0.1 : 0.02, zoomed: this.zoomed });
    this.xTicks = this.x.ticks(this.x.names ? Math.max(30, ...this.x.names.map((name) => Math.min(wide(name), 90) + 8)) : 64, Math.max(0, ...(layout.xaxis.ticktext ?? []).map((words) => Math.min(wide(words), 90) + 8)));
  }

  drawAxes() {
    const { svg, figure: { layout } } = this, quiet = { fill: "var(--quiet)" }, grid = { stroke: "var(--line)" };
    const lines = [], middle = (this.left + this.right) / 2;
    if (layout.yaxis.showgrid !== false) for (const [y] of this.yTicks) lines.push(`M${this.left} ${y.toFixed(1)}H${this.right}`);
    if (layout.xaxis.showgrid !== false && !this.heat) for (const [x] of this.xTicks) lines.push(`M${x.toFixed(1)} ${this.top}V${this.bottom}`);
    svg.append(node("path", { d: lines.join(""), fill: "none", class: "grid-lines" }, grid));
    svg.append(node("path", { d: `M${this.left} ${this.top}V${this.bottom}H${this.right}`, fill: "none" }, { stroke: "var(--other)" }));
    for (const [y, words] of this.yTicks) if (y >= this.top - 4 && y <= this.bottom + 4) svg.append(node("text", { x: this.left - 6, y: y + 4, "text-anchor": "end" }, quiet, this.fitted(words, this.labelRoom + 4)));
    for (const [x, words] of this.xTicks) if (x >= this.left - 4 && x <= this.right + 4) svg.append(node("text", { x, y: this.bottom + 15, "text-anchor": "middle" }, quiet, this.fitted(words, 90)));
    if (layout.xaxis.title?.text) svg.append(node("text", { x: middle, y: this.height - 6, "text-anchor": "middle" }, { fill: "var(--ink)" }, layout.xaxis.title.text));
    const up = (this.top + this.bottom) / 2;
    if (layout.yaxis.title?.text) svg.append(node("text", { x: 11, y: up, "text-anchor": "middle", transform: `rotate(-90 11 ${up})` }, { fill: "var(--ink)" }, layout.yaxis.title.text));
  }

  fitted(words, room) {
    if (letters.measureText(words).width <= room) return words;
    let fits = words.length;
    while (fits > 1 && letters.measureText(words.slice(0, fits) + "…").width > room) fits -= 1;
    return words.slice(0, fits) + "…";
  }

  fillOf(trace, colour) {
    if (!trace.style.weave) return asColour(colour);
    const id = `${this.id}-w${trace.number}`;
    const pattern = node("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" });
    pattern.append(node("rect", { width: 6, height: 6 }, { fill: asColour(colour) }), node("path", { d: trace.style.weave, "stroke-width": 1.1, fill: "none" }, { stroke: "var(--card)", opacity: 0.5 }));
    this.defs.append(pattern);
    return `url(#${id})`;
  }

  drawTrace(trace) {
    const opacity = trace.opacity ?? 1, into = this.inside;
    if (trace.type === "heatmap") return this.drawHeat(trace);
    if (trace.type === "bar") return into.append(node("path", { d: this.bars(trace), class: "bars" }, { fill: this.fillOf(trace, trace.marker.color), opacity }));
    if (trace.fill === "toself") return into.append(node("path", { d: this.along(trace.x, trace.y) + "Z", class: "band" }, { fill: asColour(trace.fillcolor), opacity }));
    if (trace.stackgroup) return into.append(node("path", { d: this.area(trace), class: "area" }, { fill: this.fillOf(trace, trace.fillcolor), opacity }));
    const points = trace.x.map((x, n) => [this.x.at(x), this.y.at(trace.y[n])]);
    if (/lines/.test(trace.mode)) {
      const { color, width = 1.5 } = trace.line;
      into.append(node("path", { d: this.along(trace.x, trace.y), fill: "none", "stroke-width": width + 0.3, "stroke-dasharray": trace.style.dash, "stroke-linejoin": "round", class: "line" }, { stroke: asColour(color), opacity }));
      if (trace.error_y) this.drawErrors(trace, points);
      if (trace.marker) this.drawShapes(points.filter(([, y]) => Number.isFinite(y)), trace, color, opacity);
    } else this.drawShapes(points.filter(([, y]) => Number.isFinite(y)), trace, trace.marker.color, opacity);
  }

  drawShapes(points, trace, colour, opacity) {
    const d = points.map(([x, y]) => trace.style.shape.replace(/^M(-?[\d.]+) (-?[\d.]+)/, (_, dx, dy) => `M${(x + Number(dx)).toFixed(1)} ${(y + Number(dy)).toFixed(1)}`)).join("");
    this.inside.append(node("path", { d, class: "points", "stroke-width": 1 }, { fill: asColour(colour), stroke: "var(--card)", opacity }));
  }

  along(xs, ys) {
    let d = "", pen = false;
    for (let n = 0; n < xs.length; n++) {
      const x = this.x.at(xs[n]), y = this.y.at(ys[n]);
      if (!Number.isFinite(x) || !Number.isFinite(y)) { pen = false; continue; }
      d += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
    return d;
  }

  area(trace) {
    const x = trace.x.map((value) => this.x.at(value).toFixed(1)), y = trace.tops.map((value) => this.y.base(value ?? 0).toFixed(1)), low = trace.bases.map((value) => this.y.base(value).toFixed(1));
    let d = `M${x[0]} ${low[0]}L${x[0]} ${y[0]}`;
    for (let n = 1; n < x.length; n++) d += `H${x[n]}V${y[n]}`;
    for (let n = x.length - 1; n >= 0; n--) d += `V${low[n]}` + (n ? `H${x[n]}` : "");
    return d + "Z";
  }

  bars(trace) {
    const across = trace.orientation === "h", [along, side] = across ? [this.x, this.y] : [this.y, this.x];
    const room = (side.names ? side.step : side.step * this.place1) * (this.figure.layout.bargap === 0 ? 1 : 0.76);
    const groups = this.figure.layout.barmode === "group" ? this.groups.length : 1, wide = Math.max(room / groups, 0.6);
    const shift = groups > 1 ? (this.groups.indexOf(trace.offsetgroup ?? trace.name) - (groups - 1) / 2) * wide : 0;
    let d = "";
    trace.places.forEach((place, n) => {
      const middle = side.at(place) + shift, [from, until] = [along.base(trace.bases[n]), along.at(trace.tops[n])];
      if (!Number.isFinite(middle) || !Number.isFinite(until) || from === until) return;
      d += across ? `M${from.toFixed(1)} ${(middle - wide / 2).toFixed(1)}H${until.toFixed(1)}v${wide.toFixed(1)}H${from.toFixed(1)}Z` : `M${(middle - wide / 2).toFixed(1)} ${from.toFixed(1)}V${until.toFixed(1)}h${wide.toFixed(1)}V${from.toFixed(1)}Z`;
    });
    return d;
  }

  drawErrors(trace, points) {
    const d = points.map(([x], n) => {
      const low = this.y.at(trace.y[n] - trace.error_y.arrayminus[n]), high = this.y.at(trace.y[n] + trace.error_y.array[n]);
      return Number.isFinite(low) && Number.isFinite(high) ? `M${x} ${low}V${high}M${x - 3} ${low}h6M${x - 3} ${high}h6` : "";
    }).join("");
    this.inside.append(node("path", { d, fill: "none", "stroke-width": 1.2, class: "errors" }, { stroke: asColour(trace.error_y.color) }));
  }

  heatColour(trace, share) {
    const at = Math.min(Math.max(share, 0), 1);
    const mix = (a, b, part) => `color-mix(in srgb, var(--${b}) ${(100 * part).toFixed(1)}%, var(--${a}))`;
    if (trace.colorscale === "heat") return at < 0.5 ? mix("card", "data", 2 * at) : mix("data", "bad", 2 * at - 1);
    return mix("card", "backward", at);
  }

  drawHeat(trace) {
    const wide = this.x.step, tall = this.y.step, span = trace.zmax - trace.zmin || 1;
    const width = this.x.names ? wide : (this.right - this.left) / trace.x.length;
    const words = trace.z.map((row) => row.map((value) => (value === null ? "" : shown(+value.toPrecision(3)))));
    const fits = trace.texttemplate && words.flat().every((each) => letters.measureText(each).width + 6 <= width); // all, or none
    trace.z.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const x = this.x.at(trace.x[c]), y = this.y.at(trace.y[r]), share = (value - trace.zmin) / span;
      this.inside.append(node("rect", { x: x - width / 2, y: y - tall / 2, width: width + 0.3, height: tall + 0.3, class: "cell" }, { fill: this.heatColour(trace, share) }));
      if (fits) this.inside.append(node("text", { x, y: y + 4, "text-anchor": "middle" }, { fill: "var(--ink)", stroke: "var(--card)", strokeWidth: 3, strokeLinejoin: "round", paintOrder: "stroke" }, words[r][c]));
    }));
    // The scale beside it: what a colour means.
    const x = this.right + 12, steps = 24, tallStep = (this.bottom - this.top) / steps;
    for (let n = 0; n < steps; n++) this.svg.append(node("rect", { x, y: this.bottom - (n + 1) * tallStep, width: 10, height: tallStep + 0.4 }, { fill: this.heatColour(trace, (n + 0.5) / steps) }));
    for (const part of [0, 0.5, 1]) this.svg.append(node("text", { x: x + 13, y: this.bottom - part * (this.bottom - this.top) + (part === 1 ? 9 : part ? 4 : 0) }, { fill: "var(--quiet)" }, this.fitted(shown(+(trace.zmin + part * span).toPrecision(3)), 36)));
    const unit = (trace.colorbar?.title?.text ?? "");
    if (unit) this.svg.append(node("text", { x: this.width - 2, y: this.height - 6, "text-anchor": "end" }, { fill: "var(--quiet)" }, unit));
  }

  drawShape(shape) {
    const style = { stroke: asColour(shape.line?.color ?? "other"), fill: shape.fillcolor ? asColour(shape.fillcolor) : "none", opacity: shape.opacity ?? 1 };
    const x = [0, 1].map((n) => (shape.xref === "paper" ? [this.left, this.right][n] : this.x.place(this.x.value(shape["x" + n])))), y = [0, 1].map((n) => (shape.yref === "paper" ? [this.bottom, this.top][n] : this.y.place(this.y.value(shape["y" + n]))));
    if (shape.type === "line") this.inside.append(node("path", { d: `M${x[0]} ${y[0]}L${x[1]} ${y[1]}`, "stroke-width": shape.line.width, "stroke-dasharray": DASHED[shape.line.dash] ?? "", class: "rule" }, style));
    else this.inside.append(node("rect", { x: Math.min(...x), y: Math.min(...y), width: Math.abs(x[1] - x[0]), height: Math.abs(y[1] - y[0]), class: "shade" }, { ...style, stroke: "none" }));
  }

  drawLabel(label) {
    // Logarithmic positions are given as logarithms.
    const x = this.x.names ? this.x.at(label.x) : this.x.place(label.x), y = this.y.names ? this.y.at(label.y) : this.y.place(label.y);
    const anchor = { left: "start", right: "end" }[label.xanchor] ?? "middle", drop = { top: 11, bottom: -2 }[label.yanchor] ?? 4;
    this.svg.append(node("text", { x: x + (label.xshift ?? 0), y: y - (label.yshift ?? 0) + drop, "text-anchor": anchor, class: "label" }, { fill: "var(--ink)", stroke: "var(--card)", strokeWidth: 3, paintOrder: "stroke" }, label.text));
  }

  // -- the legend: one tab stop, arrow keys within ----------------------------------------------------------------------

  legend() {
    const list = document.createElement("div");
    list.className = "series";
    list.setAttribute("role", "toolbar");
    list.setAttribute("aria-label", "Series: press to hide or show");
    const named = new Set();
    for (const trace of this.traces) {
      if (trace.showlegend === false || trace.type === "heatmap" || named.has(trace.name)) continue;
      named.add(trace.name);
      const button = document.createElement("button"), swatch = node("svg", { width: 22, height: 12, viewBox: "0 0 22 12", "aria-hidden": "true" });
      button.type = "button";
      button.tabIndex = named.size === 1 ? 0 : -1;
      button.setAttribute("aria-pressed", String(!trace.gone));
      const colour = trace.marker?.color ?? trace.line?.color ?? trace.fillcolor;
      if (trace.type === "bar" || trace.stackgroup) swatch.append(node("rect", { width: 22, height: 12, rx: 2 }, { fill: this.fillOf(trace, trace.fillcolor ?? colour) }));
      else {
        if (/lines/.test(trace.mode)) swatch.append(node("path", { d: "M0 6H22", "stroke-width": 2, "stroke-dasharray": trace.style.dash }, { stroke: asColour(colour) }));
        if (trace.marker) swatch.append(node("path", { d: trace.style.shape, transform: "translate(11 6)", "stroke-width": 0.8 }, { fill: asColour(colour), stroke: "var(--card)" }));
      }
      button.append(swatch, trace.name);
      button.addEventListener("click", () => { if (!this.hidden.delete(trace.name)) this.hidden.add(trace.name); const at = [...list.children].indexOf(button); this.draw(this.figure); this.place.querySelectorAll(".series button")[at]?.focus(); });
      list.append(button);
    }
    for (const shape of this.figure.layout.shapes ?? []) {
      if (!shape.showlegend) continue;
      const item = document.createElement("span"), swatch = node("svg", { width: 22, height: 12, "aria-hidden": "true" });
      if (shape.type === "line") swatch.append(node("path", { d: "M0 6H22", "stroke-width": 2, "stroke-dasharray": DASHED[shape.line.dash] ?? "" }, { stroke: asColour(shape.line.color) }));
      else swatch.append(node("rect", { width: 22, height: 12 }, { fill: asColour(shape.fillcolor), opacity: 0.3 }));
      item.append(swatch, shape.name);
      list.append(item);
    }
    list.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], buttons = [...list.querySelectorAll("button")];
      if (!by) return;
      event.preventDefault();
      const at = buttons.indexOf(document.activeElement), next = buttons[(at + by + buttons.length) % buttons.length];
      buttons[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return list;
  }

  // -- what is under the mouse, and zooming -----------------------------------------------------------------------------

  listen() {
    const { place } = this;
    let begun = null;
    const x = (event) => event.clientX - this.svg.getBoundingClientRect().left;
    place.addEventListener("pointermove", (event) => {
      if (!this.svg) return;
      if (begun !== null) this.band(begun, x(event));
      else if (event.target.closest("svg") === this.svg) this.point(x(event), event.clientY - this.svg.getBoundingClientRect().top, event);
    });
    place.addEventListener("pointerleave", () => { this.mark?.remove(); hideTip(); });
    place.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch" || event.target.closest("svg") !== this.svg || this.x.names || this.heat || x(event) < this.left) return;
      begun = x(event);
      place.setPointerCapture(event.pointerId);
    });
    place.addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const ends = [begun, x(event)].map((pixel) => Math.min(Math.max(pixel, this.left), this.right)).sort((a, b) => a - b);
      begun = null;
      this.chosen?.remove();
      if (ends[1] - ends[0] > 8) { this.zoomed = ends.map((pixel) => this.x.back(pixel)); this.draw(this.figure); }
    });
    place.addEventListener("dblclick", () => this.whole());
  }

  whole() { this.zoomed = null; this.draw(this.figure); }

  offerReset() {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "whole";
    button.textContent = "Show all";
    button.addEventListener("click", () => this.whole());
    this.place.append(button);
  }

  band(from, until) {
    this.chosen?.remove();
    this.chosen = node("rect", { x: Math.min(from, until), y: this.top, width: Math.abs(until - from), height: this.bottom - this.top }, { fill: "var(--accent)", opacity: 0.15 });
    this.svg.append(this.chosen);
  }

  point(x, y, event) {
    this.mark?.remove();
    if (x < this.left || x > this.right || y < this.top || y > this.bottom) return hideTip();
    const { layout } = this.figure, lines = [];
    let at = null;
    const across = this.traces.some((trace) => trace.type === "bar" && trace.orientation === "h");
    const nearest = (values, scale, pixel) => values.reduce((best, value, n) => { const d = Math.abs(scale.at(value) - pixel); return d < best[1] ? [n, d] : best; }, [-1, Infinity])[0];
    for (const trace of this.traces) {
      if (trace.gone || trace.fill === "toself" || trace.hoverinfo === "skip") continue;
      if (trace.type === "heatmap") {
        const c = nearest(trace.x, this.x, x), r = nearest(trace.y, this.y, y);
        lines.push(`${shown(trace.y[r])}, ${(layout.xaxis.title?.text ?? "")} ${shown(trace.x[c])}: ${shown(trace.z[r]?.[c] ?? null)} ${(trace.colorbar?.title?.text ?? "")}`);
        continue;
      }
      const n = across ? nearest(trace.y, this.y, y) : nearest(trace.x, this.x, x);
      if (n < 0) continue;
      if (trace.mode === "markers" && Math.abs(this.x.at(trace.x[n]) - x) > 12) continue;
      at ??= across ? trace.y[n] : trace.x[n];
      const value = across ? trace.x[n] : trace.y[n], words = trace.text?.[n] ? ` (${trace.text[n]})` : "";
      if (value !== null) lines.push(`${trace.name}: ${shown(value, across ? layout.xaxis : layout.yaxis)}${words}`);
    }
    if (!lines.length) return hideTip();
    const head = at === null ? "" : `${across ? "" : (layout.xaxis.title?.text ?? "") + " "}${shown(at)}`.trim();
    if (at !== null && !across) { this.mark = node("path", { d: `M${this.x.at(at)} ${this.top}V${this.bottom}` }, { stroke: "var(--quiet)", opacity: 0.6 }); this.svg.append(this.mark); }
    clearTimeout(waiting);
    tipAt([head, ...lines].filter(Boolean).join("\n"), event.clientX, event.clientY);
  }
}
