// Denials panel: live, redrawn once a second. Reservations that expired are listed with them.
//
// Denials of one key within one second are one row, so that one retrying client does not fill the list.

import { byId, el, list, setText, show } from './dom.js';
import { Panel } from './panel.js';
import { count, isCandidate, time, why } from './format.js';

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

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('denials', 'Denials', hooks);
    const form = byId('denials-form');
    form.addEventListener('submit', (event) => event.preventDefault());
    form.addEventListener('change', () => this.refresh());
    byId('denials-pause').addEventListener('click', () => this.#pause(!this.#isPaused));
  }

  choose(policy) {
    byId('denials-policy').value = policy;
    this.refresh();
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
      this.#events = events.filter((event) => !isCandidate(event.policy));
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
    const at = el('time');
    const times = el('b', { class: 'times' });
    const reason = el('span');
    return {
      node: el(
        'tr',
        { 'data-mode': mode },
        el('td', { class: 'time' }, at),
        el(
          'th',
          { scope: 'row' },
          el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
          el('p', { class: 'under narrow' }, policy),
        ),
        el('td', { class: 'wide' }, policy),
        el(
          'td',
          { class: 'why' },
          times,
          mode === 'shadow' ? el('b', { class: 'tag' }, 'shadow') : null,
          verdict === 'expired' ? el('b', { class: 'tag' }, 'expired') : null,
          reason,
        ),
        el('td', { class: 'wide' }, protocol),
      ),
      update: ({ last, count: n }) => {
        at.dateTime = last.at;
        at.title = last.at;
        setText(at, time(last.at));
        setText(times, n > 1 ? `${count(n)}×` : '');
        show(times, n > 1);
        setText(reason, `${why(last)}${last.source === 'store' ? '' : `, decided by ${last.source}`}`);
      },
    };
  }
}

/** Groups events, newest first, into rows by second, policy, key, protocol and verdict. */
function rows(events) {
  const found = new Map();
  for (const event of events) {
    const { policy, key, mode, protocol, verdict } = event;
    const second = Math.floor(new Date(event.at).getTime() / 1000);
    const id = identity({ second, policy, key, mode, protocol, verdict });
    const row = found.get(id) ?? { second, policy, key, mode, protocol, verdict, last: event, count: 0 };
    row.count += 1;
    found.set(id, row);
  }
  return [...found.values()].slice(0, MAX_ROWS);
}

const identity = ({ second, policy, key, mode, protocol, verdict }) =>
  JSON.stringify([second, policy, key, mode, protocol, verdict]);
