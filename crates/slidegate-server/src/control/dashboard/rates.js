// Chart of the last hour: decisions, denials and fallbacks by policy, reservations, keys, and durations of the store.
//
// The last seconds of the decisions come from the live stream: a step of the history is only complete every ten seconds.
// Those of several instances come from the status.

import { byId, el, list, options, setText, show } from './dom.js';
import { ROUND, axis, ceiling, chart, colour } from './chart.js';
import { exports } from './exports.js';
import { checksOf, isFallback, known, perSecond, sumOf, total } from './history.js';
import { compact, count, figure, isCandidate, percent, plain, rate, time } from './format.js';

/** Most policies with a line of their own, those with most first. */
const MAX_LINES = 5;
/** Seconds kept of the live stream: more than two steps of the history, which it follows. */
const TAIL_S = 30;
const EMPTY_SCALE = 5;
const COLOURS = ['line-1', 'line-2', 'line-3', 'line-4', 'line-5', 'line-6'];
const DASHES = [null, [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3]];

/** What the chart can show. `lines(history, isChosen)` returns the lines; `isChosen` tells the chosen policies. */
const VIEWS = {
  decisions: { title: 'Decisions per second', text: rate, lines: decisions },
  denied: { title: 'Denials per second, by policy', text: rate, lines: byPolicy(({ verdict }) => verdict === 'deny', known) },
  fallback: { title: 'Fallback decisions per second, by policy', text: rate, lines: byPolicy(isFallback) },
  sources: { title: 'Decisions per second, by source', text: rate, lines: bySource },
  held: { title: 'Held by open reservations, or in flight, by policy', text: figure, lines: held },
  reservations: { title: 'Reservations', text: figure, lines: reservations },
  keys: { title: 'Keys in memory', text: figure, lines: keys },
  store: { title: 'Store, milliseconds', text: (ms) => `${figure(ms)} ms`, lines: store },
};

const MARKS = {
  started: 'Started',
  reloaded: 'Config reloaded',
  rejected: 'Config rejected',
  changes_lost: 'Changes lost',
  changed: 'Limit changed',
};

export class Rates {
  #plot = null;
  #names = '';
  #lines = [];
  #at = [];
  #markers = [];
  #history = null;
  #fleet = null;
  /** Whether the decisions are those of several instances. */
  #isSum = false;
  /** The last seconds, newest last. */
  #seconds = [];
  /** The last of them. */
  #second = null;
  #hovered = null;
  /** The time that a link names, in seconds. */
  #pinned = null;
  #form = byId('history-form').elements;

  /** `onPin(time)` is called when a time is chosen, in milliseconds, or null. */
  constructor(onPin) {
    this.onPin = onPin;
    options(
      this.#form.view,
      Object.entries(VIEWS).map(([name, { title }]) => [name, title]),
    );
    for (const select of [this.#form.view, this.#form.policy]) select.addEventListener('change', () => this.#update());
    this.#form.instance.addEventListener('change', () => this.fleetChanged(this.#fleet));
    byId('rates-table').addEventListener('toggle', () => this.#table());
    byId('rates-now').addEventListener('click', () => this.onPin(null));
    exports(byId('rates'), 'history', () => this.#rows());
    this.#update();
  }

  /** Sets the selectable policies. */
  policiesChanged(policies) {
    options(this.#form.policy, [['', 'All'], ...policies.map(({ name }) => [name, name])]);
  }

  /** Says whose decisions are shown, if there are or may be other instances, and adds theirs. `at` is in milliseconds. */
  fleetChanged(fleet, at) {
    this.#fleet = fleet;
    const instances = fleet?.instances ?? [];
    show(byId('history-of'), instances.length > 1);
    show(byId('rates-instance'), instances.length > 1 || Boolean(fleet?.error));
    if (!fleet) return;
    const { id, name } = instances.find((one) => one.this);
    options(this.#form.instance, [['', 'All'], [id, name]]);
    const isSum = instances.length > 1 && !this.#form.instance.value;
    const since = fleet.error ? `The store has not replied since ${time(fleet.alone_since)}: the` : 'The';
    if (isSum !== this.#isSum) [this.#isSum, this.#seconds, this.#second] = [isSum, [], null];
    setText(
      byId('rates-instance'),
      isSum
        ? `Decisions, denials and the rates of the policies are those of ${instances.length} instances together. The rest is of this one: ${name}.`
        : `${since} chart, the rates of the policies, the keys and the denials are those of this instance only: ${name}.`,
    );
    if (isSum && at) this.#addSecond({ at: at / 1000, allowed: fleet.allowed_per_s, denied: fleet.denied_per_s });
  }

  choose(policy) {
    this.#form.policy.value = policy;
    this.#update();
  }

  draw(history) {
    this.#history = history;
    const last = history.at_ms.at(-1) ?? 0;
    this.#seconds = this.#seconds.filter(({ at }) => at * 1000 > last);
    this.#update();
    this.#describe();
  }

  /** Adds a second of the live stream. */
  add(second) {
    if (!this.#isSum) this.#addSecond({ ...second, at: new Date(second.at).getTime() / 1000 });
  }

  #addSecond(second) {
    this.#second = second;
    this.#seconds.push(second);
    if (this.#seconds.length > TAIL_S) this.#seconds.shift();
    if (this.#form.view.value === 'decisions') this.#update();
    this.#readOut();
  }

  /** Marks a time, in milliseconds; null: none. */
  pin(at) {
    this.#pinned = at === null ? null : at / 1000;
    show(byId('rates-now'), at !== null);
    this.#plot?.redraw();
    this.#readOut();
  }

  #update() {
    const { title, lines } = VIEWS[this.#form.view.value];
    const history = this.#history;
    setText(byId('rates-title'), title);
    this.#at = history ? history.at_ms.map((at) => at / 1000) : [];
    this.#markers = history?.markers ?? [];
    const policy = this.#form.policy.value;
    this.#lines = history ? lines(history, (name) => !policy || name === policy) : decisions(EMPTY, () => true);
    if (this.#form.view.value === 'decisions') this.#appendSeconds(policy);
    const names = JSON.stringify(this.#lines.map(({ name }) => name));
    if (!this.#plot || names !== this.#names) this.#rebuild(names);
    else this.#plot.setData(this.#data());
    this.#legend();
    this.#listMarkers();
    this.#readOut();
  }

  #appendSeconds(policy) {
    if (this.#isSum && policy) return;
    const last = this.#at.at(-1) ?? 0;
    for (const second of this.#seconds.filter(({ at }) => at > last)) {
      const figures = policy ? (second.by_policy[policy] ?? NONE) : second;
      this.#at.push(second.at);
      this.#lines.forEach((line) => line.values.push(figures[line.live] ?? null));
    }
  }

  #data() {
    return [this.#at, ...this.#lines.map(({ values }) => values)];
  }

  #rebuild(names) {
    this.#names = names;
    this.#plot?.destroy();
    const series = this.#lines.map(({ colour: name, dash, filled }) => ({
      stroke: () => colour(name),
      fill: filled ? () => colour(name, 0.14) : null,
      width: 1.5,
      dash: dash ?? [],
      points: { show: false },
    }));
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
        series: [{}, ...series],
        hooks: {
          setCursor: [
            (plot) => {
              this.#hovered = plot.cursor.idx ?? null;
              this.#readOut();
            },
          ],
          draw: [(plot) => this.#drawMarkers(plot)],
          ready: [(plot) => plot.over.addEventListener('click', () => this.#pinHovered())],
        },
      },
      this.#data(),
    );
  }

  #pinHovered() {
    if (this.#hovered !== null) this.onPin(this.#at[this.#hovered] * 1000);
  }

  /** The range of the last figures: after the service has gone, they stay where they are. That of a young service is shorter. */
  #span() {
    const now = this.#at.at(-1) ?? Date.now() / 1000;
    const first = Math.min(now - 60, this.#at[0] ?? 0, ...this.#markers.map(({ at_ms: at }) => at / 1000));
    return [Math.max(first, now - 60 * Number(this.#form.minutes.value)), now];
  }

  #drawMarkers(plot) {
    const { ctx, bbox } = plot;
    const line = (at, name, dash) => {
      const x = Math.round(plot.valToPos(at, 'x', true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      ctx.strokeStyle = colour(name);
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    };
    ctx.save();
    ctx.lineWidth = 1;
    for (const { at_ms: at } of this.#markers) line(at / 1000, 'muted', [3, 3]);
    if (this.#pinned !== null) line(this.#pinned, 'accent', []);
    ctx.restore();
  }

  #legend() {
    show(byId('rates-legend'), this.#form.view.value !== 'decisions');
    list(
      byId('rates-legend'),
      this.#lines,
      ({ name, colour: of }) => `${name} ${of}`,
      ({ name, colour: of }) => {
        const value = el('b');
        const node = el('li', {}, el('i', { class: `swatch ${of}`, 'aria-hidden': 'true' }), `${name} `, value);
        return { node, update: (line) => setText(value, this.#text(line.values[this.#shown()])) };
      },
    );
  }

  #text(value) {
    return value === null || value === undefined ? '–' : VIEWS[this.#form.view.value].text(value);
  }

  #listMarkers() {
    const [from] = this.#span();
    list(
      byId('rates-markers'),
      this.#markers.filter(({ at_ms: at }) => at / 1000 >= from).reverse(),
      ({ at_ms: at, what, text }) => `${at} ${what} ${text}`,
      ({ at_ms: at, what, text }) => ({
        node: el('li', {}, link(at), ` ${MARKS[what] ?? what}: ${plain(text)}`),
        update: () => {},
      }),
    );
  }

  /** The index that is read out: under the pointer, linked to, or the newest. */
  #shown() {
    if (this.#hovered !== null && this.#hovered < this.#at.length) return this.#hovered;
    if (this.#pinned === null) return this.#at.length - 1;
    const after = this.#at.findIndex((at) => at >= this.#pinned);
    return after < 0 ? this.#at.length - 1 : after;
  }

  /** Shows the figures under the pointer, of a linked time, or of the last second. */
  #readOut() {
    const shown = this.#shown();
    const isNow = this.#hovered === null && this.#pinned === null;
    const second = this.#second;
    const isLive = isNow && second !== null;
    const at = isLive ? second.at : this.#at[shown];
    setText(byId('rates-when'), isLive ? (this.#isSum ? 'in the last seconds' : 'in the last second') : at === undefined ? '' : `at ${time(at * 1000)}`);
    const isDecisions = this.#form.view.value === 'decisions';
    if (isLive || isDecisions) {
      const of = (name) =>
        isLive ? second[name] : this.#lines.find(({ live }) => live === name)?.values[shown];
      const [allowed, denied, shadow] = ['allowed', 'denied', 'shadow_denied'].map(of);
      setText(byId('rate-allowed'), rate(allowed));
      setText(byId('rate-denied'), rate(denied));
      setText(byId('rate-shadow'), rate(shadow));
      setText(byId('rate-share'), allowed === undefined ? '–' : percent(denied, allowed + denied));
    }
    if (!isDecisions) this.#legend();
  }

  /** The figures as rows, oldest first: of the table and of exports. */
  #rows() {
    return this.#at.map((at, index) => ({
      at: new Date(at * 1000).toISOString(),
      ...Object.fromEntries(this.#lines.map(({ name, values }) => [name, values[index] ?? null])),
    }));
  }

  #describe() {
    const { allowed, denied, lasted_ms: lasted } = this.#history;
    const [steps, unknown] = [lasted.length, this.#history.others_unknown.filter(Boolean).length];
    setText(
      byId('rates-unknown'),
      unknown ? `Gaps: in ${unknown} of ${steps} steps the decisions of other instances are unknown, as the store was away.` : '',
    );
    const lines = this.#lines.map(({ name, values }) => `${name} ${this.#text(values.at(-1))}`).join(', ');
    const span = Math.round(total(lasted) / 1000);
    byId('rates-chart').setAttribute(
      'aria-label',
      `Line chart: ${VIEWS[this.#form.view.value].title}. Last: ${lines}. In ${count(span)} seconds: ` +
        `${count(total(allowed))} allowed, ${count(total(denied))} denied. The table below has the figures.`,
    );
    this.#table();
  }

  /** The figures as a table, while it is open. */
  #table() {
    if (!this.#history || !byId('rates-table').open) return;
    const names = this.#lines.map(({ name }) => name);
    byId('rates-head').replaceChildren(
      el('th', { scope: 'col' }, 'Until'),
      ...names.map((name) => el('th', { scope: 'col', class: 'n' }, name)),
    );
    list(
      byId('rates-rows'),
      this.#history.at_ms.map((at, index) => ({ at, index })).reverse(),
      ({ at }) => `${at} ${names}`,
      ({ at }) => {
        const cells = names.map(() => el('td', { class: 'n' }));
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, link(at)), ...cells),
          update: ({ index }) =>
            cells.forEach((cell, line) => setText(cell, this.#text(this.#lines[line].values[index]))),
        };
      },
    );
  }
}

const EMPTY = { at_ms: [], lasted_ms: [], others_unknown: [], allowed: [], denied: [], decisions: [], held: [], markers: [] };
const NONE = { allowed: 0, denied: 0, shadow_denied: 0 };

/** A link to a time. */
const link = (at) => el('a', { href: `#at/${new Date(at).toISOString()}` }, time(at));

function decisions(history, isChosen) {
  const of = (verdict) => checksOf(history, (one) => one.verdict === verdict && isChosen(one.policy));
  const isAll = history.decisions.every(({ policy }) => isCandidate(policy) || isChosen(policy));
  const [allowed, denied] = isAll ? [history.allowed, history.denied] : [of('allow'), of('deny')];
  const line = (name, live, counts, more) => ({ name, live, values: perSecond(history, known(history, counts)), ...more });
  return [
    line('Allowed', 'allowed', allowed, { colour: 'allowed', filled: true }),
    line('Denied', 'denied', denied, { colour: 'denied' }),
    line('Shadow would deny', 'shadow_denied', of('shadow_deny'), { colour: 'shadowed', dash: [4, 3] }),
  ];
}

/** Lines of the largest sums, and one of all others. */
function largest(history, named) {
  const sorted = named.filter(({ values }) => total(values) > 0).sort((a, b) => total(b.values) - total(a.values));
  const rest = sorted.slice(MAX_LINES).map(({ values }) => values);
  const shown = sorted.slice(0, MAX_LINES);
  if (rest.length) shown.push({ name: `${rest.length} others`, values: sumOf(rest, history.at_ms.length) });
  if (shown.length === 0) shown.push({ name: 'None', values: history.at_ms.map(() => 0) });
  return shown.map((one, at) => ({ ...one, colour: COLOURS[at], dash: DASHES[at] }));
}

/** `of(history, counts)` leaves out the steps that are not known. */
function byPolicy(matches, of = (_, counts) => counts) {
  return (history, isChosen) => {
    const names = new Set(history.decisions.filter(matches).map(({ policy }) => policy));
    const counts = (name) => checksOf(history, (one) => one.policy === name && matches(one));
    const chosen = [...names].filter((name) => isChosen(name) && !isCandidate(name));
    return largest(
      history,
      chosen.map((name) => ({ name, values: perSecond(history, of(history, counts(name))) })),
    );
  };
}

const SOURCES = { store: 'Store', cached: 'Cached denial', local: 'Local', allow: 'Allow', deny: 'Deny', other_instances: 'Other instances' };

function bySource(history, isChosen) {
  const of = (source) => checksOf(history, (one) => one.source === source && isChosen(one.policy));
  return largest(
    history,
    Object.entries(SOURCES).map(([source, name]) => {
      const counts = source === 'other_instances' ? known(history, of(source)) : of(source);
      return { name, values: perSecond(history, counts) };
    }),
  );
}

function held(history, isChosen) {
  return largest(
    history,
    history.held.filter(({ policy }) => isChosen(policy)).map(({ policy, held: values }) => ({ name: policy, values })),
  );
}

function reservations(history) {
  const lines = [
    { name: 'Open', values: history.open_reservations },
    { name: 'Settled in the step', values: history.settled },
    { name: 'Settled late', values: history.late },
    { name: 'Expired', values: history.expired },
    { name: 'Settlements waiting', values: history.pending_settlements },
  ];
  return lines.map((one, at) => ({ ...one, colour: COLOURS[at], dash: DASHES[at] }));
}

function keys(history) {
  return [{ name: 'Keys', values: history.keys, colour: 'allowed', filled: true }];
}

function store(history) {
  const ms = (name) => history.store.map((calls) => (calls[name] === null ? null : calls[name] / 1000));
  return [
    { name: 'Mean', values: ms('mean_us'), colour: COLOURS[0], dash: null },
    { name: '99 of 100 within', values: ms('p99_us'), colour: COLOURS[1], dash: DASHES[1] },
  ];
}
