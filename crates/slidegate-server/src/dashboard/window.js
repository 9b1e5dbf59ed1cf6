// One key's window as a hill: it rises with each charge that still counts, and falls as they stop counting.
//
// Both slopes meet at now. The left one exists only under a log: the other algorithms keep sums, not charges.

import { byId } from './dom.js';
import { ROUND, axis, chart, colour } from './chart.js';
import { compact, count, duration } from './format.js';

/** Algorithms whose usage falls in steps; that of the others sinks evenly. */
const STEPS = ['sliding-log', 'fixed-window'];

/** What the left slope is made of, the oldest first. A log that counts in steps may stamp a charge a little ahead. */
export const chargesOf = ({ algorithm, charges }) =>
  algorithm === 'sliding-log'
    ? charges.map(({ at_ms_ago: ago, cost }) => ({ ago: Math.max(0, ago), cost })).sort((a, b) => b.ago - a.ago)
    : [];

export class Window {
  #plot = null;
  #seen = null;

  draw(seen) {
    const algorithmChanged = this.#seen?.algorithm !== seen.algorithm;
    this.#seen = seen;
    byId('key-chart').setAttribute('aria-label', this.#words());
    if (this.#plot && !algorithmChanged) {
      this.#plot.setData(points(seen));
      return;
    }
    this.#plot?.destroy();
    this.#plot = this.#build();
  }

  #build() {
    const steps = globalThis.uPlot.paths.stepped({ align: 1 });
    const even = globalThis.uPlot.paths.linear();
    const used = (more) => ({
      stroke: () => colour('allowed'),
      fill: () => colour('allowed', 0.14),
      width: 1.5,
      points: { show: false },
      ...more,
    });
    return chart(
      byId('key-chart'),
      {
        padding: [10, 30, 0, 0],
        scales: {
          x: { time: false, range: () => this.#span() },
          y: { range: (_, __, most) => [0, this.#top(most)] },
        },
        axes: [
          axis({ size: 26, space: 60, splits: () => this.#splits(), values: (_, ticks) => ticks.map(label) }),
          axis({ size: 54, space: 30, incrs: ROUND, values: (_, ticks) => ticks.map(compact) }),
        ],
        series: [
          {},
          used({ paths: steps }),
          used({ paths: STEPS.includes(this.#seen.algorithm) ? steps : even, dash: [5, 3] }),
          { stroke: () => colour('denied'), width: 1, dash: [2, 3], points: { show: false } },
        ],
        hooks: { draw: [(plot) => now(plot)] },
      },
      points(this.#seen),
    );
  }

  #span() {
    const { window_ms: width, reset_after_ms: reset } = this.#seen;
    const [oldest] = chargesOf(this.#seen);
    const past = oldest ? Math.max(width, oldest.ago) : width / 4;
    return [-past / 1000, Math.max(width, reset) / 1000];
  }

  #splits() {
    const [from, to] = this.#span();
    const third = Math.min(-from, to) < to / 2 ? to / 4 : to / 2;
    const ticks = [];
    for (let at = Math.ceil(from / third) * third; at <= to + third / 1000; at += third) ticks.push(at);
    return ticks;
  }

  #top(most) {
    const highest = Math.max(most ?? 0, this.#seen.limit);
    // The limit's line is not the chart's edge.
    return highest < 8 ? highest + 1 : highest * 1.12;
  }

  #words() {
    const { key, used, limit, window_ms: width, reset_after_ms: reset } = this.#seen;
    const charges = chargesOf(this.#seen);
    const from = charges.length ? `, from ${count(charges.length)} charges in the last ${duration(width)}` : '';
    const until = used ? `; all of it is free again in ${duration(reset)}` : '';
    const sum = `${count(used)} of ${count(limit)} used`;
    return `The window of ${key}: ${sum}${from}${until}. The table below has the figures.`;
  }
}

const label = (s) => (Math.abs(s) < 1e-9 ? 'now' : `${s < 0 ? '−' : '+'}${duration(Math.abs(s) * 1000)}`);

/** Columns of the chart: seconds from now, used before, used from now on, limit. */
export function points(seen) {
  const { window_ms: width, limit, used, room, reset_after_ms: reset } = seen;
  const past = chargesOf(seen);
  const rows = [];
  if (past.length) {
    // What was charged beyond those that are listed lies before the chart.
    let sum = Math.max(0, used - past.reduce((total, { cost }) => total + cost, 0));
    rows.push([Math.min(-width, -past[0].ago) / 1000 - 1e-6, sum, null]);
    for (const { ago, cost } of past) rows.push([-ago / 1000, (sum += cost), null]);
  } else {
    rows.push([-width / 4000, null, null]);
  }
  rows.push([0, past.length ? used : null, used]);
  for (const { in_ms: wait, used: left } of room) if (wait > 0) rows.push([wait / 1000, null, left]);
  const end = Math.max(width, reset) / 1000;
  const [lastAt, , lastUsed] = rows.at(-1);
  if (lastAt < end) rows.push([end, null, lastUsed]);
  return [0, 1, 2].map((column) => rows.map((row) => row[column])).concat([rows.map(() => limit)]);
}

/** A line where the past ends. */
function now(plot) {
  const { ctx, bbox } = plot;
  const x = Math.round(plot.valToPos(0, 'x', true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = colour('muted');
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
