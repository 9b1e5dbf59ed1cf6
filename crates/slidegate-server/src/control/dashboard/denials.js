// Denials panel: how often keys were denied, as counted on all instances, with the last reason that this instance knows.
//
// Counts come from the list of most denied keys. Events are sampled in a flood, so that they are never counted as the
// whole. Reservations that expired are listed with them.

import { byId, el, list, setText, show } from './dom.js';
import { request } from './api.js';
import { exports } from './exports.js';
import { Panel, errorText } from './panel.js';
import { compact, count, decidedBy, isCandidate, time, whose, why } from './format.js';

/** Maximum events kept, and rows shown. */
const MAX_EVENTS = 500;
const MAX_ROWS = 100;
/** Maximum events buffered between redraws and while paused. */
const MAX_BUFFERED = 1000;

export class Denials {
  #panel;
  #events = [];
  #fresh = [];
  /** The sequence number of the newest event loaded. */
  #newest = 0;
  /** The most denied keys; null if they are not counted. */
  #counted = null;
  #isPaused = false;
  #dropped = 0;
  #policies = new Map();

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('denials', 'Denials', hooks);
    exports(byId('denials'), 'denials', () => this.#rows().map(exported));
    const form = byId('denials-form');
    form.addEventListener('submit', (event) => event.preventDefault());
    form.addEventListener('change', () => this.refresh());
    byId('denials-pause').addEventListener('click', () => this.#pause(!this.#isPaused));
  }

  choose(policy) {
    byId('denials-policy').value = policy;
    this.refresh();
  }

  policiesChanged(policies) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    if (this.#events.length) this.#show();
  }

  #pause(isPaused) {
    this.#isPaused = isPaused;
    const button = byId('denials-pause');
    button.setAttribute('aria-pressed', String(isPaused));
    setText(button, isPaused ? 'Resume' : 'Pause');
    if (!isPaused) this.draw();
    this.#showStatus();
  }

  #showStatus() {
    const held = this.#fresh.length;
    const paused = this.#isPaused && `paused; ${held >= MAX_BUFFERED ? 'more than ' : ''}${count(held)} since`;
    const dropped = this.#dropped > 0 && `${count(this.#dropped)} messages dropped`;
    setText(byId('denials-held'), [paused, dropped].filter(Boolean).join('; '));
  }

  #filter() {
    return { policy: byId('denials-policy').value, key: byId('denials-key').value.trim() };
  }

  #matches(one) {
    const { policy, key } = this.#filter();
    return !isCandidate(one.policy) && (!policy || one.policy === policy) && (!key || one.key === key);
  }

  /** Loads the counts, and the recent events that match the filter. */
  async refresh() {
    const path = () => {
      const query = new URLSearchParams({ limit: MAX_EVENTS });
      for (const [name, value] of Object.entries(this.#filter())) if (value) query.set(name, value);
      return `/v1/events?${query}`;
    };
    await this.#panel.load(path, ({ events }) => {
      this.#newest = Math.max(0, ...events.map(({ seq }) => seq));
      this.#events = events.filter((event) => !isCandidate(event.policy) && event.verdict !== 'notify');
      // Keep streamed events that are newer than the response.
      this.#fresh = this.#fresh.filter((event) => event.seq > this.#newest && this.#matches(event));
      this.#showStatus();
    });
    await this.count();
  }

  /** Loads the counts of all instances. */
  async count() {
    if (this.#isPaused) return;
    const { policy } = this.#filter();
    const query = new URLSearchParams({ by: 'denied', limit: MAX_ROWS, ...(policy && { policy }) });
    try {
      this.#counted = await request(`/v1/top?${query}`);
    } catch (error) {
      errorText(error, 'Denials'); // rethrows bugs of this page
      this.#counted = null;
    }
    this.#show();
  }

  add(event) {
    if (event.seq <= this.#newest || !this.#matches(event)) return;
    this.#fresh.unshift(event);
    if (this.#fresh.length > MAX_BUFFERED) this.#fresh.pop();
  }

  /** The service dropped messages because this page was too slow. */
  missed(messages) {
    this.#dropped += messages;
    this.#showStatus();
  }

  /** Called once a second. */
  draw() {
    if (this.#isPaused) {
      this.#showStatus();
    } else if (this.#fresh.length) {
      this.#events = [...this.#fresh, ...this.#events].slice(0, MAX_EVENTS);
      this.#fresh = [];
      this.count();
    }
  }

  /** The last event of each counted key, and events without a count. */
  #rows() {
    const found = new Map();
    for (const event of this.#events) {
      const isDenial = event.verdict === 'deny';
      const id = JSON.stringify([event.policy, event.key, isDenial]);
      const row = found.get(id) ?? { id, policy: event.policy, key: event.key, at: event.at, event, atLeast: 0 };
      row.atLeast += 1;
      found.set(id, row);
    }
    for (const { policy, key, count: denied, at_most_over: over, last_at: at } of this.#counted?.keys ?? []) {
      if (!this.#matches({ policy, key })) continue;
      const id = JSON.stringify([policy, key, true]);
      const row = found.get(id) ?? { id, policy, key, at };
      found.set(id, { ...row, denied, over, at: row.at > at ? row.at : at });
    }
    return [...found.values()].sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, MAX_ROWS);
  }

  #show() {
    const rows = this.#rows();
    setText(byId('denials-of'), this.#scope(rows.length));
    list(byId('denials-rows'), rows, ({ id }) => id, (row) => this.#row(row));
  }

  /** For which time the counts are, of how many, and of which instances. */
  #scope(rows) {
    if (!this.#counted) return 'Not counted: the list of most denied keys is not available.';
    const { period_s: period, error_bound: bound, sampled } = this.#counted;
    const span = `in the last ${period / 60} to ${(2 * period) / 60} minutes`;
    const none = this.#filter().policy || this.#filter().key ? 'No denial matches' : 'No denials';
    const error = bound ? `Counts are at most ${count(bound)} too high, and keys not listed have at most as many.` : '';
    return [
      rows ? `Denials ${span}.` : `${none} ${span}.`,
      error,
      sampled && 'Estimated from a sample.',
      rows > 0 && 'Reasons are the last that this instance knows.',
      whose(this.#counted),
    ]
      .filter(Boolean)
      .join(' ');
  }

  #row({ policy, key }) {
    const open = () => this.hooks.openKey(policy, key);
    const last = el('time');
    const times = el('b', { class: 'times' });
    const tag = el('b', { class: 'tag' });
    const reason = el('span');
    const protocol = el('td', { class: 'wide' });
    const node = el(
      'tr',
      {},
      el('td', { class: 'time' }, last),
      el(
        'th',
        { scope: 'row' },
        el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
        el('p', { class: 'under' }, policy),
      ),
      el('td', { class: 'n' }, times),
      el('td', { class: 'why' }, tag, ' ', reason),
      protocol,
    );
    return {
      node,
      update: (row) => {
        const { event, at } = row;
        const known = this.#policies.get(policy);
        const mode = event?.mode ?? (known?.mode === 'shadow' ? 'shadow' : 'enforce');
        node.dataset.mode = mode;
        const marked = event?.verdict === 'expired' ? 'expired' : mode === 'shadow' ? 'shadow' : '';
        setText(tag, marked);
        show(tag, marked !== '');
        last.dateTime = at;
        last.title = at;
        setText(last, time(at));
        setText(times, countText(row));
        setText(reason, event ? why(event, known) + decidedBy(event) : 'by another instance, or long ago');
        setText(protocol, event?.protocol ?? '');
      },
    };
  }
}

/** The count, and its error; of events, which may be sampled, the least. */
function countText({ denied, over, atLeast }) {
  if (denied === undefined) return `≥ ${count(atLeast)}`;
  return compact(denied) + (over ? ` −${compact(over)}` : '');
}

/** A row as exported, with the last event. */
function exported({ event, at, policy, key, denied = null, over = null }) {
  const { attributes, block, ...last } = event ?? {};
  return { policy, key, denied, at_most_over: over, last_at: at, ...last };
}
