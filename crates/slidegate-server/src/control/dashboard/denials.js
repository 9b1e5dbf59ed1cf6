// Denials panel: live, redrawn once a second. Reservations that expired are listed with them.
//
// Denials of one key for one reason are one row, so that one retrying client does not fill the list.

import { byId, el, list, setText, show } from './dom.js';
import { exports } from './exports.js';
import { Panel } from './panel.js';
import { count, isCandidate, rate, time, why } from './format.js';

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
  #isPaused = false;
  #dropped = 0;
  #policies = new Map();

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('denials', 'Denials', hooks);
    exports(byId('denials'), 'denials', () => this.#events.map(({ attributes, block, ...event }) => event));
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

  #matches(event) {
    const { policy, key } = this.#filter();
    return !isCandidate(event.policy) && (!policy || event.policy === policy) && (!key || event.key === key);
  }

  /** Loads the recent denials that match the filter. */
  refresh() {
    const path = () => {
      const query = new URLSearchParams({ limit: MAX_EVENTS });
      for (const [name, value] of Object.entries(this.#filter())) if (value) query.set(name, value);
      return `/v1/events?${query}`;
    };
    return this.#panel.load(path, ({ events }) => {
      this.#newest = Math.max(0, ...events.map(({ seq }) => seq));
      this.#events = events.filter((event) => !isCandidate(event.policy) && event.verdict !== 'notify');
      // Keep streamed events that are newer than the response.
      this.#fresh = this.#fresh.filter((event) => event.seq > this.#newest && this.#matches(event));
      this.#show();
      this.#showStatus();
    });
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
      this.#show();
    }
  }

  #show() {
    if (this.#events.length === 0)
      this.#panel.note(this.#filter().policy || this.#filter().key ? 'No denial matches.' : 'No denials yet.');
    else this.#panel.note('');
    list(byId('denials-rows'), rows(this.#events), identity, (row) => this.#row(row));
  }

  #row({ policy, key, mode, protocol, verdict }) {
    const open = () => this.hooks.openKey(policy, key);
    const [last, first] = [el('time'), el('time')];
    const times = el('b', { class: 'times' });
    const rates = el('p', { class: 'under' });
    const reason = el('span');
    return {
      node: el(
        'tr',
        { 'data-mode': mode },
        el('td', { class: 'time' }, last),
        el(
          'th',
          { scope: 'row' },
          el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
          el('p', { class: 'under' }, policy),
        ),
        el('td', { class: 'n' }, times, rates),
        el(
          'td',
          { class: 'why' },
          mode === 'shadow' ? el('b', { class: 'tag' }, 'shadow') : null,
          verdict === 'expired' ? el('b', { class: 'tag' }, 'expired') : null,
          reason,
        ),
        el('td', { class: 'wide time' }, first),
        el('td', { class: 'wide' }, protocol),
      ),
      update: (row) => {
        for (const [node, { at }] of [
          [last, row.last],
          [first, row.first],
        ]) {
          node.dateTime = at;
          node.title = at;
          setText(node, time(at));
        }
        setText(times, count(row.count));
        setText(rates, rateText(row));
        setText(reason, `${why(row.last, this.#policies.get(row.policy))}${row.last.source === 'store' ? '' : `, decided by ${row.last.source}`}`);
      },
    };
  }
}

/** The rate between the first and the last of them, if there are several. */
function rateText({ first, last, count: n }) {
  const ms = new Date(last.at) - new Date(first.at);
  return n > 1 && ms > 0 ? rate((1000 * (n - 1)) / ms) : '';
}

/** Groups events, newest first, into rows by policy, key, reason, protocol and verdict. */
function rows(events) {
  const found = new Map();
  for (const event of events) {
    const id = identity(event);
    const row = found.get(id) ?? { ...event, last: event, count: 0 };
    row.first = event;
    row.count += 1;
    found.set(id, row);
  }
  return [...found.values()].slice(0, MAX_ROWS);
}

const identity = ({ policy, key, mode, reason, protocol, verdict }) =>
  JSON.stringify([policy, key, mode, reason, protocol, verdict]);
