// The spans of a time line, as the server packs them (view/records/layout.py): columns that are used as they arrive.
"use strict";

const LAUNCH = 0, COLLECTIVE = 1;

function inWords(nanoseconds) {
  const size = Math.abs(nanoseconds);
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= scale) return (nanoseconds / scale).toPrecision(size >= 1000 * scale ? 5 : 4).replace(/\.?0+$/, "") + " " + unit;
  }
  return Math.round(nanoseconds) + " ns";
}

// The first place from `low` to `high` at which `value` of the place is not below the wanted value.
function bisect(low, high, wanted, value) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value(middle) < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

class Spans {
  constructor(buffer) {
    const words = new TextDecoder();
    const until = 8 + Number(words.decode(new Uint8Array(buffer, 0, 8)));
    Object.assign(this, JSON.parse(words.decode(new Uint8Array(buffer, 8, until - 8))));
    const types = { start: Float64Array, length: Float64Array, name: Uint32Array, link_from: Uint32Array, link_to: Uint32Array, place: Uint32Array, kind: Uint8Array, link_kind: Uint8Array };
    for (const [name, [at, count]] of Object.entries(this.columns)) this[name] = new types[name](buffer, until + at, count);
    this.count = this.start.length;
    this.gap = this.kinds.indexOf("gap");
    this.mark = this.kinds.indexOf("mark");
    this.partial = this.place.length > 0; // an overview: the whole is on its way
    this.lay();
  }

  // A row is a range of the columns: sorted by start, without overlap, so that ends are sorted, too.
  lay() {
    let at = 0;
    this.rows = [];
    this.tracks.forEach((track, number) => {
      track.first = this.rows.length;
      track.from = at;
      track.rows.forEach((count, depth) => {
        this.rows.push({ track: number, depth, from: at, to: at + count });
        at += count;
      });
      track.to = at;
    });
  }

  endOf(span) { return this.start[span] + this.length[span]; }
  rowOf(span) { return bisect(0, this.rows.length, span + 1, (row) => this.rows[row].to); }
  trackOf(span) { return this.tracks[this.rows[this.rowOf(span)].track]; }
  kindOf(span) { return this.kinds[this.kind[span]]; }
  nameOf(span) { return this.names[this.name[span]]; }
  // The first span of a row that ends at or after a time, and the first one that begins at or after it.
  ending(row, time, low = row.from) { return bisect(low, row.to, time, (n) => this.start[n] + this.length[n]); }
  starting(row, time, low = row.from) { return bisect(low, row.to, time, (n) => this.start[n]); }

  // The links of a span: [kind, the other span, whether the link leads away].
  linksOf(span) {
    const found = [];
    for (let n = 0; n < this.link_from.length; n++) {
      if (this.link_from[n] === span) found.push([this.link_kind[n], this.link_to[n], true]);
      else if (this.link_to[n] === span) found.push([this.link_kind[n], this.link_from[n], false]);
    }
    return found;
  }

  // The links of one kind that touch a range of time, or null if there are more than `most`.
  linksWithin(kind, from, until, most) {
    const found = [];
    for (let n = 0; n < this.link_from.length; n++) {
      if (this.link_kind[n] !== kind) continue;
      const a = this.link_from[n], b = this.link_to[n];
      if (Math.min(this.start[a], this.start[b]) > until || Math.max(this.endOf(a), this.endOf(b)) < from) continue;
      if (found.push([a, b]) > most) return null;
    }
    return found;
  }

  // When a track is busy: the union of its events; marks and gaps are no work. Two sorted lists are merged row by row.
  busy(track) {
    if (track.busy) return track.busy;
    let starts = [], ends = [];
    for (let r = track.first; r < track.first + track.rows.length; r++) {
      const row = this.rows[r], nextStarts = [], nextEnds = [];
      let old = 0, n = row.from;
      const put = (start, end) => {
        const last = nextEnds.length - 1;
        if (last >= 0 && start <= nextEnds[last]) { if (end > nextEnds[last]) nextEnds[last] = end; }
        else if (end > start) { nextStarts.push(start); nextEnds.push(end); }
      };
      while (old < starts.length || n < row.to) {
        if (n < row.to && (this.kind[n] === this.gap || this.kind[n] === this.mark)) { n++; continue; }
        if (n >= row.to || (old < starts.length && starts[old] <= this.start[n])) { put(starts[old], ends[old]); old++; }
        else { put(this.start[n], this.endOf(n)); n++; }
      }
      starts = nextStarts;
      ends = nextEnds;
    }
    const before = new Float64Array(starts.length + 1);
    for (let n = 0; n < starts.length; n++) before[n + 1] = before[n] + ends[n] - starts[n];
    return (track.busy = { starts, ends, before });
  }

  busyUntil(track, time) {
    const { starts, ends, before } = this.busy(track);
    const at = bisect(0, starts.length, time, (n) => starts[n]);
    return before[at] - (at ? Math.max(ends[at - 1] - time, 0) : 0);
  }

  // What a range of time holds: per track its events (without gaps) and its busy time.
  measure(from, until) {
    return this.tracks.map((track) => {
      let count = 0;
      for (let r = track.first; r < track.first + track.rows.length; r++) {
        const row = this.rows[r], last = this.starting(row, until);
        for (let n = this.ending(row, from); n < last; n++) if (this.kind[n] !== this.gap && this.endOf(n) > from) count++;
      }
      return { track, count, busy: this.busyUntil(track, until) - this.busyUntil(track, from) };
    });
  }

  describe(span) {
    const track = this.trackOf(span), kind = this.kindOf(span);
    return `${this.nameOf(span)}: ${inWords(this.length[span])}, from ${inWords(this.start[span])} · rank ${track.rank}, ${track.label} · ${kind}`;
  }
}
