// Usage chart of one key: past charges that still count left of now, future usage right of now.
//
// Only a log has the left part: the other algorithms store sums, not charges.

import { byId } from './dom.js';
import { ROUND, axis, chart, colour } from './chart.js';
import { compact, count, duration } from './format.js';

/** Algorithms whose usage falls in steps; that of the others falls linearly. */
const STEPS = ['sliding-log', 'fixed-window'];

/** The past charges, oldest first. A coarse log may round a timestamp up, so ages are at least 0. */
export const chargesOf = ({ algorithm, charges }) =>
  algorithm === 'sliding-log'
    ? charges.map(({ at_ms_ago: ago, cost }) => ({ ago: Math.max(0, ago), cost })).sort((a, b) => b.ago - a.ago)
    : [];

export class UsageChart {
  #plot = null;
  #state = null;

  draw(state) {
    const algorithmChanged = this.#state?.algorithm !== state.algorithm;
    this.#state = state;
    byId('key-chart').setAttribute('aria-label', this.#description());
    if (this.#plot && !algorithmChanged) {
      this.#plot.setData(points(state));
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
          used({ paths: STEPS.includes(this.#state.algorithm) ? steps : even, dash: [5, 3] }),
          { stroke: () => colour('denied'), width: 1, dash: [2, 3], points: { show: false } },
        ],
        hooks: { draw: [(plot) => now(plot)] },
      },
      points(this.#state),
    );
  }

  #span() {
    const { window_ms: width, reset_after_ms: reset } = this.#state;
    const [oldest] = chargesOf(this.#state);
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
    const highest = Math.max(most ?? 0, this.#state.limit);
    // Leave space above the line of the limit.
    return highest < 8 ? highest + 1 : highest * 1.12;
  }

  #description() {
    const { key, used, limit, window_ms: width, reset_after_ms: reset } = this.#state;
    const charges = chargesOf(this.#state);
    const from = charges.length ? `, from ${count(charges.length)} charges in the last ${duration(width)}` : '';
    const until = used ? `; all of it expires in ${duration(reset)}` : '';
    const sum = `${count(used)} of ${count(limit)} used`;
    return `Usage of ${key}: ${sum}${from}${until}. The table below has the figures.`;
  }
}

const label = (s) => (Math.abs(s) < 1e-9 ? 'now' : `${s < 0 ? '−' : '+'}${duration(Math.abs(s) * 1000)}`);

/** Columns of the chart: seconds from now, past usage, future usage, limit. */
export function points(state) {
  const { window_ms: width, limit, used, room, reset_after_ms: reset } = state;
  const past = chargesOf(state);
  const rows = [];
  if (past.length) {
    // Charges that are not listed are older than the chart.
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

/** Draws the line at now. */
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
