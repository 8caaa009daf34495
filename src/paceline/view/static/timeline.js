// Draws a time line on a canvas. A frame visits at most one span per pixel and row, however many spans there are.
"use strict";

const GUTTER = 150, ROW = 17, GAP = 10, AXIS = 24, STEPS = 16, HEAD = 16;
const ROOM = 10; // pixels of width for each arrow: with more arrows, only those of the chosen event are drawn
// No colour of a phase, but for communication, which is the same thing.
const KIND_COLOURS = { op: "op", mark: "other", runtime: "call", kernel: "kernel", copy: "copy", set: "copy", sync: "bad", python: "python", communication: "communication", gap: "card", event: "event" };
const KIND_WORDS = { op: "op", mark: "mark", runtime: "driver call", kernel: "kernel", copy: "copy", set: "set", sync: "synchronisation", python: "Python", communication: "communication", gap: "gap of a stream", event: "event" };
// Kinds differ by texture as well as by colour.
const TEXTURES = { communication: "/", copy: ".", set: ".", sync: "x", gap: "\\", runtime: "-" };
const PHASE = new RegExp(`^paceline\\.(${PHASES.join("|")})$`);
const PHASE_TEXTURES = { communication: "/", data: "." };
const LIGHT_ON = /^(backward|communication|optimizer|kernel)$/;

class TimeLine {
  constructor(card, spans) {
    this.card = card;
    this.spans = spans;
    this.window = card.querySelector(".window");
    this.canvas = card.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.range = [0, Math.max(spans.end, 1)];
    this.view = [...this.range];
    this.chosen = -1;
    this.hits = null;
    this.arrows = true;
    this.measured = null; // [from, until]
    this.path = null;
    this.axis = spans.steps.length > 1 ? AXIS + STEPS : AXIS;
    this.lay();
    new ResizeObserver(() => this.resize()).observe(this.window);
    document.addEventListener("themechange", () => { this.inks = null; this.paint(); });
    this.resize();
  }

  lay() {
    let y = this.axis, rank = null;
    for (const track of this.spans.tracks) {
      if (rank !== null && track.rank !== rank) y += GAP;
      track.opens = track.rank !== rank;
      rank = track.rank;
      track.y = y;
      y += HEAD + track.rows.length * ROW + 4;
    }
    this.height = y + 8;
    this.card.querySelector(".spacer").style.height = this.height + "px";
    this.window.style.height = Math.min(this.height, Math.max(280, innerHeight * 0.68)) + "px";
  }

  // All events, in place of an overview of them: the same tracks and rows.
  take(spans) {
    if (this.chosen >= 0) this.chosen = this.spans.place[this.chosen];
    this.spans = spans;
    this.lay();
    this.paint();
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
    this.inks = null;
    this.paint();
  }

  x(time) { return this.gutter + ((time - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.gutter); }
  time(x) { return this.view[0] + ((x - this.gutter) / (this.width - this.gutter)) * (this.view[1] - this.view[0]); }
  // Where a row is on the canvas.
  y(row) { return this.spans.tracks[row.track].y + HEAD + row.depth * ROW - this.window.scrollTop; }

  paint() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const begun = performance.now();
      this.draw();
      this.card.dataset.ms = (performance.now() - begun).toFixed(2);
      this.card.dataset.ready = "1";
      this.card.dataset.opened ??= performance.now().toFixed(0); // milliseconds since the navigation began
    });
  }

  // Colours and textures of the theme, looked up once.
  colours() {
    const named = Object.fromEntries(["ink", "quiet", "line", "card", "accent", "shade", "arrow", ...PHASES].map((name) => [name, colour(name)]));
    const kinds = this.spans.kinds.map((kind) => colour(KIND_COLOURS[kind] ?? "other"));
    const textures = this.spans.kinds.map((kind) => (TEXTURES[kind] ? this.texture(TEXTURES[kind], kind === "gap" ? named.quiet : LIGHT_ON.test(KIND_COLOURS[kind]) ? "rgba(255,255,255,.45)" : "rgba(0,0,0,.28)") : null));
    const phases = Object.fromEntries(Object.entries(PHASE_TEXTURES).map(([phase, sign]) => [phase, this.texture(sign, LIGHT_ON.test(phase) ? "rgba(255,255,255,.45)" : "rgba(0,0,0,.28)")]));
    return { ...named, kinds, textures, phases };
  }

  texture(sign, ink) {
    const tile = document.createElement("canvas"), size = 6;
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.strokeStyle = pen.fillStyle = ink;
    pen.beginPath();
    if (sign === "/" || sign === "x") { pen.moveTo(-1, size + 1); pen.lineTo(size + 1, -1); }
    if (sign === "\\" || sign === "x") { pen.moveTo(-1, -1); pen.lineTo(size + 1, size + 1); }
    if (sign === "-") { pen.moveTo(0, size - 0.5); pen.lineTo(size, size - 0.5); }
    if (sign === ".") pen.fillRect(2, 2, 2, 2);
    pen.stroke();
    return this.pen.createPattern(tile, "repeat");
  }

  draw() {
    const { pen, spans } = this;
    this.inks ??= this.colours();
    const { ink, quiet, line, card } = this.inks;
    const top = this.window.scrollTop;
    pen.fillStyle = card;
    pen.fillRect(0, 0, this.width, this.tall);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.letter ??= pen.measureText("aten::convolution_backward_0123456789").width / 37;
    this.drawGrid();
    for (const track of spans.tracks) {
      const y = track.y - top;
      if (y > this.tall || y + HEAD + track.rows.length * ROW < 0) continue;
      if (track.opens) { pen.fillStyle = line; pen.fillRect(0, y - GAP / 2 - 1, this.width, 1); }
      pen.font = "11px system-ui, sans-serif";
      for (let r = track.first; r < track.first + track.rows.length; r++) this.drawRow(spans.rows[r]);
    }
    this.drawArrows();
    this.drawPath();
    this.drawChosen();
    for (const track of spans.tracks) {
      const y = track.y - top;
      if (y > this.tall || y + HEAD + track.rows.length * ROW < 0) continue;
      pen.fillStyle = card;
      pen.fillRect(0, y, this.gutter - 4, HEAD + track.rows.length * ROW);
      pen.fillStyle = track.opens ? ink : quiet;
      pen.font = track.opens ? "600 11px system-ui, sans-serif" : "11px system-ui, sans-serif";
      this.label(track, y + HEAD / 2 + 2);
    }
    this.drawAxis();
    this.drawMeasured();
    this.card.querySelector(".status").textContent = `${inWords(this.view[0])} to ${inWords(this.view[1])} of ${inWords(this.range[1])} · ${spans.events.toLocaleString("en")} events${spans.partial ? ", loading" : ""}`;
  }

  // A label that is too long for its place goes on in a second line, where there is one.
  label(track, y) {
    const words = (track.opens ? `rank ${track.rank} · ` : "") + track.label, room = this.gutter - 10;
    const fits = Math.floor(room / this.letter);
    if (words.length <= fits || !track.rows.length) return this.pen.fillText(words, 4, y, room);
    const cut = words.lastIndexOf(" ", fits);
    const at = cut > 3 ? cut : fits;
    this.pen.fillText(words.slice(0, at), 4, y, room);
    const rest = words.slice(at).trim();
    this.pen.fillText(rest.length > fits ? rest.slice(0, fits - 1) + "…" : rest, 4, y + 14, room);
  }

  drawRow(row) {
    const { pen, spans, view, inks } = this;
    const y = this.y(row);
    if (y > this.tall || y + ROW < this.axis) return;
    const perPixel = (view[1] - view[0]) / (this.width - this.gutter);
    let n = spans.ending(row, view[0]);
    while (n < row.to && spans.start[n] <= view[1]) {
      const from = Math.max(this.x(spans.start[n]), this.gutter), until = Math.min(this.x(spans.endOf(n)), this.width);
      const wide = until - from, kind = spans.kind[n], name = spans.name[n];
      const phase = kind === spans.mark ? PHASE.exec(spans.names[name]) : null;
      const width = Math.max(wide - (wide > 3 ? 0.6 : 0), 0.8);
      pen.globalAlpha = this.hits && !this.hits.has(name) ? 0.18 : 1;
      pen.fillStyle = phase ? inks[phase[1]] : inks.kinds[kind];
      if (kind !== spans.gap) pen.fillRect(from, y, width, ROW - 2);
      const texture = phase ? inks.phases[phase[1]] : inks.textures[kind];
      if (texture && wide > 3) { pen.fillStyle = texture; pen.fillRect(from, y, width, ROW - 2); }
      if (wide > 34) this.drawWords(phase ? phase[1] : kind === spans.gap ? spans.names[name].slice(5) : spans.names[name], from, y, wide, kind, phase);
      // Spans narrower than a pixel look the same: go on with the one that ends in another pixel.
      n = wide < 1 ? Math.max(n + 1, spans.ending(row, spans.start[n] + perPixel, n + 1)) : n + 1;
    }
    pen.globalAlpha = 1;
  }

  drawWords(words, from, y, wide, kind, phase) {
    const { pen, spans, inks } = this;
    const fits = Math.floor((wide - 8) / this.letter);
    const text = words.length > fits ? words.slice(0, Math.max(fits - 1, 1)) + "…" : words;
    if (kind === spans.gap) {
      pen.fillStyle = inks.card;
      pen.fillRect(from + 2, y + 1, Math.min(text.length * this.letter + 6, wide - 4), ROW - 4);
      pen.fillStyle = inks.quiet;
    } else {
      const light = LIGHT_ON.test(phase ? phase[1] : KIND_COLOURS[spans.kinds[kind]]) || spans.kinds[kind] === "sync";
      if (phase ? inks.phases[phase[1]] : inks.textures[kind]) { // words on a plain ground
        pen.fillStyle = phase ? inks[phase[1]] : inks.kinds[kind];
        pen.fillRect(from + 2, y, Math.min(text.length * this.letter + 5, wide - 3), ROW - 2);
      }
      pen.fillStyle = light ? "#fff" : "#10151d";
    }
    pen.fillText(text, from + 4, y + ROW / 2 - 0.5, wide - 6);
  }

  // -- on top of the events -------------------------------------------------------------------------------------------

  drawChosen() {
    if (this.chosen < 0) return;
    const { pen, spans } = this;
    const y = this.y(spans.rows[spans.rowOf(this.chosen)]);
    const from = Math.max(this.x(spans.start[this.chosen]), this.gutter), until = Math.min(this.x(spans.endOf(this.chosen)), this.width);
    if (until < this.gutter || from > this.width) return;
    // A ring with an edge of its own, also around an event that is narrower than a pixel.
    const wide = Math.max(until - from, 5), left = until - from < 5 ? (from + until) / 2 - 2.5 : from;
    for (const [edge, colour] of [[4, this.inks.card], [2, this.inks.ink]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = edge;
      pen.strokeRect(left, y, wide, ROW - 2);
    }
  }

  drawArrows() {
    const { spans, view } = this;
    if (!spans.link_from.length) return;
    const { pen, inks } = this;
    const shown = this.arrows ? [LAUNCH, COLLECTIVE].map((kind) => spans.linksWithin(kind, view[0], view[1], (this.width - this.gutter) / ROOM)) : [[], []];
    this.card.dataset.arrows = String((shown[0]?.length ?? 0) + (shown[1]?.length ?? 0));
    pen.lineWidth = 1;
    pen.globalAlpha = 0.6;
    for (const [a, b] of shown[LAUNCH] ?? []) this.arrow(a, b, LAUNCH, inks.arrow);
    pen.globalAlpha = 0.9;
    for (const [a, b] of shown[COLLECTIVE] ?? []) this.arrow(a, b, COLLECTIVE, inks.arrow);
    pen.globalAlpha = 1;
    pen.lineWidth = 2.5;
    for (const [kind, other, away] of this.chosen >= 0 ? spans.linksOf(this.chosen) : []) this.arrow(...(away ? [this.chosen, other] : [other, this.chosen]), kind, inks.accent);
  }

  // From a launch to its work; or, at the moment at which the last rank came to a collective, from it to a rank that waited.
  arrow(from, to, kind, ink) {
    const { pen, spans } = this;
    const rows = [from, to].map((span) => spans.rows[spans.rowOf(span)]);
    const y = rows.map((row) => this.y(row) + ROW / 2 - 1);
    if (Math.max(...y) < this.axis || Math.min(...y) > this.tall) return;
    let x;
    if (kind === LAUNCH) x = [this.x(spans.endOf(from)), this.x(spans.start[to])];
    else {
      const at = Math.min(Math.max(spans.start[from], spans.start[to]), spans.endOf(to));
      x = [this.x(spans.start[from]), this.x(at)];
    }
    if (Math.max(...x) < this.gutter || Math.min(...x) > this.width) return;
    pen.strokeStyle = pen.fillStyle = ink;
    pen.setLineDash(kind === COLLECTIVE ? [5, 3] : []);
    pen.beginPath();
    pen.moveTo(x[0], y[0]);
    const down = Math.sign(y[1] - y[0]) || 1, tip = y[1] - down * (ROW / 2 - 1);
    if (kind === LAUNCH) pen.bezierCurveTo(x[0] + 12, (y[0] + y[1]) / 2, x[1] - 12, (y[0] + y[1]) / 2, x[1], tip);
    else pen.lineTo(x[1], tip);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    pen.moveTo(x[1], tip);
    pen.lineTo(x[1] - 3.5, tip - down * 6);
    pen.lineTo(x[1] + 3.5, tip - down * 6);
    pen.fill();
  }

  // The path is a line along the bottom of its events, and from each event to the next.
  drawPath() {
    if (!this.path) return;
    const { pen, spans, view } = this;
    const pieces = this.path.pieces, bottom = new Map();
    const place = (piece) => {
      const [span, rank] = piece;
      if (span >= 0) return this.y(spans.rows[spans.rowOf(span)]) + ROW - 3;
      if (!bottom.has(rank)) bottom.set(rank, spans.tracks.find((track) => track.rank === rank));
      return bottom.get(rank) ? bottom.get(rank).y + HEAD - 4 - this.window.scrollTop : 0;
    };
    const strokes = [[5, this.inks.card], [3, this.inks.ink]];
    pen.beginPath();
    const perPixel = (view[1] - view[0]) / (this.width - this.gutter);
    let last = null, lastEnd = -Infinity;
    for (let n = bisect(0, pieces.length, view[0], (at) => pieces[at][4]); n < pieces.length && pieces[n][3] <= view[1]; n++) {
      const [, , , start, end] = pieces[n];
      if (end - lastEnd < perPixel && last !== null) continue; // the same pixel
      const y = place(pieces[n]), from = Math.max(this.x(start), this.gutter), until = Math.min(this.x(end), this.width);
      if (last === null) pen.moveTo(from, y); else if (y !== last) pen.lineTo(from, y);
      pen.lineTo(until, y);
      last = y;
      lastEnd = end;
    }
    for (const [wide, ink] of strokes) {
      pen.lineWidth = wide;
      pen.strokeStyle = ink;
      pen.stroke();
    }
  }

  drawMeasured() {
    if (!this.measured) return;
    const { pen } = this;
    const from = Math.max(this.x(this.measured[0]), this.gutter), until = Math.min(this.x(this.measured[1]), this.width);
    if (until < this.gutter || from > this.width) return;
    pen.fillStyle = this.inks.accent;
    pen.globalAlpha = 0.14;
    pen.fillRect(from, this.axis - 4, until - from, this.tall);
    pen.globalAlpha = 1;
    pen.fillRect(from, this.axis - 8, 1.5, this.tall);
    pen.fillRect(until - 1.5, this.axis - 8, 1.5, this.tall);
    const words = inWords(this.measured[1] - this.measured[0]), room = words.length * this.letter + 12;
    const left = Math.min(Math.max((from + until - room) / 2, this.gutter), this.width - room);
    pen.fillRect(left, this.axis - 22, room, 16);
    pen.fillStyle = this.inks.card;
    pen.fillText(words, left + 6, this.axis - 14);
  }

  // -- the axis -------------------------------------------------------------------------------------------------------

  ticks() {
    const span = this.view[1] - this.view[0];
    const rough = span / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
    const found = [];
    for (let time = Math.ceil(this.view[0] / step) * step; time <= this.view[1]; time += step) found.push(time);
    return found;
  }

  drawGrid() {
    const { pen } = this;
    pen.fillStyle = this.inks.line;
    for (const time of this.ticks()) pen.fillRect(Math.round(this.x(time)), 0, 1, this.tall);
    if (this.spans.steps.length < 2) return;
    pen.fillStyle = this.inks.quiet;
    for (const step of this.spans.steps) pen.fillRect(Math.round(this.x(step.start)), AXIS - 4, 1.5, this.tall);
  }

  drawAxis() {
    const { pen, inks } = this;
    pen.fillStyle = inks.card;
    pen.fillRect(0, 0, this.width, this.axis - 4);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = inks.quiet;
    for (const time of this.ticks()) {
      const x = this.x(time);
      if (x >= this.gutter && x < this.width - 40) pen.fillText(inWords(time), x + 4, 10);
    }
    if (this.spans.steps.length > 1) {
      for (const { step, start, end } of this.spans.steps) {
        const from = Math.max(this.x(start), this.gutter), until = Math.min(this.x(end), this.width);
        if (until < this.gutter || from > this.width) continue;
        pen.fillStyle = inks.quiet;
        pen.fillRect(from, AXIS - 4, 1.5, STEPS);
        // In full, or the number alone, or nothing: never squeezed.
        const words = [`step ${step}`, String(step)].find((each) => pen.measureText(each).width <= until - from - 7);
        pen.fillStyle = inks.ink;
        if (words) pen.fillText(words, from + 5, AXIS + 4);
      }
    }
    pen.fillStyle = inks.line;
    pen.fillRect(0, this.axis - 4, this.width, 1);
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
    const box = this.canvas.getBoundingClientRect(), { spans } = this;
    const time = this.time(event.clientX - box.left), y = event.clientY - box.top;
    if (y < this.axis) return -1;
    const slack = ((this.view[1] - this.view[0]) / (this.width - this.gutter)) * 2;
    for (const track of spans.tracks) {
      const depth = Math.floor((y + this.window.scrollTop - track.y - HEAD) / ROW);
      if (depth < 0 || depth >= track.rows.length) continue;
      const row = spans.rows[track.first + depth], n = spans.ending(row, time - slack);
      if (n < row.to && spans.start[n] <= time + slack) return n;
    }
    return -1;
  }

  // Brings an event into view; without changing the scale, if that is possible.
  reveal(span) {
    const { spans } = this, [from, until] = this.view;
    const start = spans.start[span], end = spans.endOf(span), wide = until - from;
    if (end < from || start > until || (start < from && end < from + wide * 0.02)) this.show(start - wide * 0.3, start + wide * 0.7);
    const row = spans.rows[spans.rowOf(span)], y = this.y(row);
    if (y < this.axis + 4 || y + ROW > this.tall) this.window.scrollTop += y - this.tall / 2;
  }

  goTo(span) {
    const { spans } = this, length = Math.max(spans.length[span], 100);
    this.show(spans.start[span] - 2 * length, spans.start[span] + 3 * length);
    this.reveal(span);
  }
}
