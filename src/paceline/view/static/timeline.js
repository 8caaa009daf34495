// The time line: up to 100,000 spans on a canvas. Rows are sorted, so that a frame visits at most one span per pixel and row.
"use strict";

const GUTTER = 150, ROW = 17, GAP = 10, AXIS = 24, HEAD = 16;
const KIND_COLOURS = { op: "forward", mark: "other", runtime: "evaluation", kernel: "backward", copy: "data", set: "data", sync: "bad", python: "evaluation", communication: "communication" };
const PHASE = new RegExp(`^paceline\\.(${PHASES.join("|")})$`);

function inWords(nanoseconds) {
  const size = Math.abs(nanoseconds);
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= scale) return (nanoseconds / scale).toPrecision(size >= 1000 * scale ? 5 : 4).replace(/\.?0+$/, "") + " " + unit;
  }
  return Math.round(nanoseconds) + " ns";
}

class TimeLine {
  constructor(card, data) {
    this.card = card;
    this.data = data;
    this.window = card.querySelector(".window");
    this.canvas = card.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.range = [0, Math.max(data.end, 1)];
    this.view = [...this.range];
    this.chosen = -1;
    this.hits = null;
    this.at = -1;
    this.lay();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.window);
    this.resize();
  }

  // Each track has one row per depth. The spans of a row are sorted by start.
  lay() {
    const { track, depth, start, length } = this.data;
    let y = AXIS, rank = null;
    this.tracks = this.data.tracks.map((told) => {
      if (rank !== null && told.rank !== rank) y += GAP;
      rank = told.rank;
      const placed = { ...told, y, rows: Array.from({ length: told.rows }, () => []) };
      y += HEAD + told.rows * ROW + 4;
      return placed;
    });
    this.height = y + 8;
    for (let n = 0; n < track.length; n++) this.tracks[track[n]].rows[depth[n]].push(n);
    for (const placed of this.tracks) {
      placed.rows = placed.rows.map((row) => {
        row.sort((a, b) => start[a] - start[b]);
        const starts = Float64Array.from(row, (n) => start[n]);
        let reach = -Infinity;
        const reaches = Float64Array.from(row, (n) => (reach = Math.max(reach, start[n] + length[n])));
        return { spans: Int32Array.from(row), starts, reaches };
      });
    }
    this.card.querySelector(".spacer").style.height = this.height + "px";
    this.window.style.height = Math.min(this.height, Math.max(280, innerHeight * 0.68)) + "px";
  }

  resize() {
    const scale = devicePixelRatio || 1;
    this.width = this.window.clientWidth;
    this.tall = this.window.clientHeight;
    this.canvas.width = this.width * scale;
    this.canvas.height = this.tall * scale;
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.tall + "px";
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.gutter = this.width < 600 ? 84 : GUTTER;
    this.paint();
  }

  x(time) { return this.gutter + ((time - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.gutter); }
  time(x) { return this.view[0] + ((x - this.gutter) / (this.width - this.gutter)) * (this.view[1] - this.view[0]); }

  paint() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const begun = performance.now();
      this.draw();
      this.card.dataset.ms = (performance.now() - begun).toFixed(2);
      this.card.dataset.ready = "1";
    });
  }

  draw() {
    const { pen, data } = this;
    const ink = colour("ink"), quiet = colour("quiet"), line = colour("line"), card = colour("card");
    const colours = data.kinds.map((kind) => colour(KIND_COLOURS[kind] ?? "other"));
    const top = this.window.scrollTop;
    pen.fillStyle = card;
    pen.fillRect(0, 0, this.width, this.tall);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawGrid(line);
    this.phases = Object.fromEntries(PHASES.map((name) => [name, colour(name)]));
    this.edge = ink;
    let rank = null;
    for (const track of this.tracks) {
      const y = track.y - top;
      const newRank = track.rank !== rank;
      rank = track.rank;
      if (y > this.tall || y + HEAD + track.rows.length * ROW < 0) continue;
      if (newRank) { pen.fillStyle = line; pen.fillRect(0, y - GAP / 2 - 1, this.width, 1); }
      pen.font = "11px system-ui, sans-serif";
      track.rows.forEach((row, depth) => this.drawRow(row, y + HEAD + depth * ROW, colours));
      pen.fillStyle = card;
      pen.fillRect(0, y, this.gutter - 4, HEAD + track.rows.length * ROW);
      pen.fillStyle = newRank ? ink : quiet;
      pen.font = newRank ? "600 11px system-ui, sans-serif" : "11px system-ui, sans-serif";
      pen.fillText((newRank ? `rank ${track.rank} · ` : "") + track.label, 4, y + HEAD / 2 + 2, this.gutter - 10);
    }
    this.drawAxis(card, quiet, line);
    this.card.querySelector(".status").textContent = `${inWords(this.view[0])} to ${inWords(this.view[1])} of ${inWords(this.range[1])} · ${data.start.length.toLocaleString("en")} events`;
  }

  drawRow(row, y, colours) {
    const { pen, data, view } = this;
    if (y > this.tall || y + ROW < AXIS) return;
    const { spans, starts, reaches } = row;
    const perPixel = (view[1] - view[0]) / (this.width - this.gutter);
    let n = lower(reaches, view[0]);
    while (n < spans.length && starts[n] <= view[1]) {
      const span = spans[n];
      const from = Math.max(this.x(starts[n]), this.gutter);
      const until = Math.min(this.x(starts[n] + data.length[span]), this.width);
      const wide = until - from;
      const name = data.name[span];
      pen.globalAlpha = this.hits && !this.hits.has(name) ? 0.18 : 1;
      const phase = data.kinds[data.kind[span]] === "mark" ? PHASE.exec(data.names[name]) : null;
      pen.fillStyle = phase ? this.phases[phase[1]] : colours[data.kind[span]];
      pen.fillRect(from, y, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.8), ROW - 2);
      if (span === this.chosen) {
        pen.strokeStyle = this.edge;
        pen.lineWidth = 2;
        pen.strokeRect(from + 1, y + 1, Math.max(wide - 2, 1), ROW - 4);
      }
      if (wide > 34) {
        const dark = phase ? /^(backward|communication|optimizer)$/.test(phase[1]) : ["kernel", "communication", "sync"].includes(data.kinds[data.kind[span]]);
        pen.fillStyle = dark ? "#fff" : "#10151d";
        const fits = Math.floor((wide - 8) / 6);
        const words = phase ? phase[1] : data.names[name];
        pen.fillText(words.length > fits ? words.slice(0, Math.max(fits - 1, 1)) + "…" : words, from + 4, y + ROW / 2 - 0.5);
      }
      // Spans narrower than a pixel look the same: skip to the span that begins in the next pixel.
      n = wide < 1 ? Math.max(n + 1, Math.min(lowerFrom(starts, starts[n] + perPixel, n + 1), lowerFrom(reaches, starts[n] + perPixel, n + 1))) : n + 1;
    }
    pen.globalAlpha = 1;
  }

  ticks() {
    const span = this.view[1] - this.view[0];
    const rough = span / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
    const found = [];
    for (let time = Math.ceil(this.view[0] / step) * step; time <= this.view[1]; time += step) found.push(time);
    return found;
  }

  drawGrid(line) {
    this.pen.fillStyle = line;
    for (const time of this.ticks()) this.pen.fillRect(Math.round(this.x(time)), 0, 1, this.tall);
  }

  drawAxis(card, quiet, line) {
    const { pen } = this;
    pen.fillStyle = card;
    pen.fillRect(0, 0, this.width, AXIS - 4);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = quiet;
    for (const time of this.ticks()) {
      const x = this.x(time);
      if (x > this.gutter && x < this.width - 40) pen.fillText(inWords(time), x + 4, 10);
    }
    pen.fillStyle = line;
    pen.fillRect(0, AXIS - 4, this.width, 1);
  }

  // -- moving ---------------------------------------------------------------------------------------------------------

  show(from, until) {
    const least = 50; // nanoseconds
    const span = Math.min(Math.max(until - from, least), (this.range[1] - this.range[0]) * 1.1);
    const middle = (from + until) / 2;
    let start = middle - span / 2;
    const slack = span * 0.05 + (this.range[1] - this.range[0]) * 0.05;
    start = Math.min(Math.max(start, this.range[0] - slack), this.range[1] + slack - span);
    this.view = [start, start + span];
    this.paint();
  }

  zoom(factor, x = (this.width + this.gutter) / 2) {
    const at = this.time(x);
    this.show(at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor);
  }

  move(share) {
    const by = (this.view[1] - this.view[0]) * share;
    this.show(this.view[0] + by, this.view[1] + by);
  }

  spanAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const time = this.time(event.clientX - box.left), y = event.clientY - box.top + this.window.scrollTop;
    const slack = ((this.view[1] - this.view[0]) / (this.width - this.gutter)) * 2;
    for (const track of this.tracks) {
      const depth = Math.floor((y - track.y - HEAD) / ROW);
      if (depth < 0 || depth >= track.rows.length) continue;
      const row = track.rows[depth];
      for (let n = lower(row.reaches, time - slack); n < row.spans.length && row.starts[n] <= time + slack; n++) {
        if (row.starts[n] + this.data.length[row.spans[n]] >= time - slack) return row.spans[n];
      }
    }
    return -1;
  }

  choose(span) {
    this.chosen = span;
    if (span >= 0) this.card.querySelector(".detail").textContent = this.describe(span);
    this.paint();
  }

  describe(span) {
    const { data } = this, track = data.tracks[data.track[span]];
    return `${data.names[data.name[span]]}: ${inWords(data.length[span])}, from ${inWords(data.start[span])} · rank ${track.rank}, ${track.label} · ${data.kinds[data.kind[span]]}`;
  }

  goTo(span) {
    const { data } = this;
    const length = Math.max(data.length[span], 100);
    this.show(data.start[span] - 2 * length, data.start[span] + 3 * length);
    const track = this.tracks[data.track[span]];
    this.window.scrollTop = track.y + data.depth[span] * ROW - this.tall / 2;
    this.choose(span);
  }

  find(text) {
    const said = this.card.querySelector(".found");
    const wanted = text.trim().toLowerCase();
    if (!wanted) { this.hits = null; this.found = []; said.textContent = ""; return this.paint(); }
    this.hits = new Set();
    this.data.names.forEach((name, number) => { if (name.toLowerCase().includes(wanted)) this.hits.add(number); });
    this.found = [];
    let total = 0;
    this.data.name.forEach((name, span) => { if (this.hits.has(name)) { this.found.push(span); total += this.data.length[span]; } });
    this.found.sort((a, b) => this.data.start[a] - this.data.start[b]);
    this.at = -1;
    said.textContent = `${this.found.length.toLocaleString("en")} found, ${inWords(total)} in all`;
    this.paint();
  }

  listen() {
    const pointers = new Map();
    let pinch = 0, moved = 0;
    this.canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      this.canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (last === undefined) {
        const span = this.spanAt(event);
        this.canvas.title = span >= 0 ? this.describe(span) : "";
        return;
      }
      pointers.set(event.pointerId, event.clientX);
      if (pointers.size === 2) {
        const [a, b] = [...pointers.values()];
        const apart = Math.abs(a - b);
        if (pinch > 10 && apart > 10) this.zoom(pinch / apart, (a + b) / 2 - this.canvas.getBoundingClientRect().left);
        pinch = apart;
      } else {
        moved += Math.abs(event.clientX - last);
        this.move((last - event.clientX) / (this.width - this.gutter));
      }
    });
    const up = (event) => {
      pointers.delete(event.pointerId);
      pinch = 0;
      if (moved < 4 && event.type === "pointerup") this.choose(this.spanAt(event));
    };
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
    this.canvas.addEventListener("dblclick", (event) => { const span = this.spanAt(event); if (span >= 0) this.goTo(span); });
    this.window.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (event.ctrlKey || event.metaKey || event.altKey) this.zoom(Math.exp(Math.sign(event.deltaY) * 0.2), event.clientX - this.canvas.getBoundingClientRect().left);
      else if (sideways) this.move((event.deltaX || event.deltaY) / (this.width - this.gutter));
      else return;
      event.preventDefault();
    }, { passive: false });
    this.window.addEventListener("scroll", () => this.paint(), { passive: true });
    const keys = {
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), w: () => this.zoom(0.7), "-": () => this.zoom(1.4), s: () => this.zoom(1.4),
      ArrowLeft: () => this.move(-0.15), a: () => this.move(-0.15), ArrowRight: () => this.move(0.15), d: () => this.move(0.15), 0: () => this.show(...this.range),
    };
    this.window.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
    });
    const acts = { in: () => this.zoom(0.6), out: () => this.zoom(1.6), all: () => this.show(...this.range) };
    this.card.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", acts[button.dataset.do]));
    const input = this.card.querySelector(".find");
    input.addEventListener("input", () => this.find(input.value));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.found?.length) return;
      event.preventDefault();
      this.at = (this.at + (event.shiftKey ? this.found.length - 1 : 1)) % this.found.length;
      this.goTo(this.found[this.at]);
    });
    document.addEventListener("themechange", () => this.paint());
  }
}

// Lower bound: the first index of a sorted column whose entry is not below the value.
function lower(column, value) { return lowerFrom(column, value, 0); }

function lowerFrom(column, value, low) {
  let high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

document.querySelectorAll(".timeline").forEach(async (card) => {
  if (!card.dataset.source) return new TimeLine(card, JSON.parse(card.querySelector("script").textContent));
  const answer = await fetch(card.dataset.source, { headers: { Accept: "application/json" } });
  if (answer.ok) new TimeLine(card, await answer.json());
  else card.querySelector(".detail").textContent = "The time line cannot be read. Reload the page to try again.";
});
