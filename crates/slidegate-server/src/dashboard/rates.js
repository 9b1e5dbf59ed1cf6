// Rates panel: decisions per second from the live stream. There is no history before the page opened.

import { byId, el, list, setText } from './dom.js';
import { ROUND, axis, ceiling, chart, colour } from './chart.js';
import { compact, count, percent, time } from './format.js';

const SPAN_S = 300;
/** Initial width of the chart. */
const MIN_SPAN_S = 60;
/** Seconds per row of the table, the chart's text alternative. */
const ROW_S = 10;
/** Seconds between updates of the chart's description, which screen readers read out. */
const DESCRIBE_EVERY = 10;
const EMPTY_SCALE = 5;

export class Rates {
  #seconds = [];
  #plot;
  #hovered = null;
  #ticks = 0;

  constructor() {
    const series = (name, more) => ({
      stroke: () => colour(name),
      fill: () => colour(name, 0.14),
      width: 1.5,
      points: { show: false },
      ...more,
    });
    this.#plot = chart(
      byId('rates-chart'),
      {
        padding: [8, 30, 0, 0],
        scales: {
          x: { time: true, range: () => this.#span() },
          y: { range: (_, __, most) => [0, ceiling(Math.max(most ?? 0, EMPTY_SCALE))] },
        },
        axes: [
          axis({ size: 26, space: 80, values: (_, ticks) => ticks.map((tick) => time(tick * 1000)) }),
          axis({ size: 46, space: 34, incrs: ROUND, values: (_, ticks) => ticks.map(compact) }),
        ],
        series: [
          {},
          series('allowed'),
          series('denied', { fill: null }),
          series('shadowed', { fill: null, dash: [4, 3] }),
        ],
        hooks: {
          setCursor: [
            (plot) => {
              this.#hovered = plot.cursor.idx ?? null;
              this.#readOut();
            },
          ],
        },
      },
      this.#data(),
    );
  }

  #span() {
    const now = this.#seconds.at(-1)?.at ?? Date.now() / 1000;
    const from = this.#seconds[0]?.at ?? now;
    return [Math.min(from, now - MIN_SPAN_S), now];
  }

  #data() {
    return ['at', 'allowed', 'denied', 'shadow_denied'].map((name) => this.#seconds.map((second) => second[name]));
  }

  add(rates) {
    const at = Math.round(new Date(rates.at).getTime() / 1000);
    if (this.#seconds.length && at <= this.#seconds.at(-1).at) this.#seconds.pop();
    this.#seconds.push({ at, allowed: rates.allowed, denied: rates.denied, shadow_denied: rates.shadow_denied });
    while (this.#seconds[0].at < at - SPAN_S) this.#seconds.shift();
    this.#plot.setData(this.#data());
    this.#readOut();
    if (this.#ticks++ % DESCRIBE_EVERY === 0) this.#describe();
  }

  /** Adds a gap to the chart. */
  interrupt() {
    const last = this.#seconds.at(-1);
    if (last && last.allowed !== null) {
      this.#seconds.push({ at: last.at + 1, allowed: null, denied: null, shadow_denied: null });
    }
  }

  /** Shows the figures of the second under the pointer, or of the last one. */
  #readOut() {
    const hovered = this.#hovered === null ? null : this.#seconds[this.#hovered];
    const second = hovered ?? this.#seconds.at(-1);
    setText(byId('rates-when'), hovered ? `at ${time(hovered.at * 1000)}` : 'in the last second');
    const known = second && second.allowed !== null;
    setText(byId('rate-allowed'), known ? count(second.allowed) : '–');
    setText(byId('rate-denied'), known ? count(second.denied) : '–');
    setText(byId('rate-shadow'), known ? count(second.shadow_denied) : '–');
    setText(byId('rate-share'), known ? percent(second.denied, second.allowed + second.denied) : '–');
  }

  #describe() {
    const known = this.#seconds.filter((second) => second.allowed !== null);
    const rows = new Map();
    for (const second of known) {
      const from = second.at - (second.at % ROW_S);
      const row = rows.get(from) ?? { from, allowed: 0, denied: 0, shadow_denied: 0 };
      for (const name of ['allowed', 'denied', 'shadow_denied']) row[name] += second[name];
      rows.set(from, row);
    }
    const total = (name) => known.reduce((sum, second) => sum + second[name], 0);
    byId('rates-chart').setAttribute(
      'aria-label',
      `Line chart of decisions per second. In the last ${known.length} seconds: ${count(total('allowed'))} allowed, ` +
        `${count(total('denied'))} denied, ${count(total('shadow_denied'))} that shadow policies would deny. ` +
        'The table below has the figures.',
    );
    list(
      byId('rates-rows'),
      [...rows.values()].reverse(),
      (row) => row.from,
      (row) => {
        const cells = [0, 1, 2].map(() => el('td', { class: 'n' }));
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, time(row.from * 1000)), ...cells),
          update: (now) =>
            ['allowed', 'denied', 'shadow_denied'].forEach((name, at) => setText(cells[at], count(now[name]))),
        };
      },
    );
  }
}
