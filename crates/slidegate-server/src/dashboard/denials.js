// Denials as they happen, drawn once a second. Those of one key in one second are one row: a client that tries again and
// again would fill the list by itself.

import { byId, el, list, say, show } from './dom.js';
import { Panel } from './panel.js';
import { count, isCandidate, time, why } from './format.js';

/** Events kept, and rows made of them: as many as anyone scrolls through. */
const KEPT = 500;
const ROWS = 100;
/** Most that gather between two drawings, and while the list is paused. */
const GATHERED = 1000;

export class Denials {
  #panel;
  #events = [];
  #fresh = [];
  /** The number of the newest event that the service has answered with. */
  #newest = 0;
  #isPaused = false;
  #left = 0;

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
    say(button, isPaused ? 'Resume' : 'Pause');
    if (!isPaused) this.draw();
    this.#tellHeld();
  }

  #tellHeld() {
    const held = this.#fresh.length;
    const paused = this.#isPaused && `paused; ${held >= GATHERED ? 'more than ' : ''}${count(held)} since`;
    const left = this.#left > 0 && `${count(this.#left)} messages were too many for this page`;
    say(byId('denials-held'), [paused, left].filter(Boolean).join('; '));
  }

  #wanted() {
    return { policy: byId('denials-policy').value, key: byId('denials-key').value.trim() };
  }

  #isWanted(event) {
    const { policy, key } = this.#wanted();
    return !isCandidate(event.policy) && (!policy || event.policy === policy) && (!key || event.key === key);
  }

  /** What the service remembers, under the filter. */
  refresh() {
    const path = () => {
      const query = new URLSearchParams({ limit: KEPT });
      for (const [name, value] of Object.entries(this.#wanted())) if (value) query.set(name, value);
      return `/v1/events?${query}`;
    };
    return this.#panel.load(path, ({ events }) => {
      this.#newest = Math.max(0, ...events.map(({ seq }) => seq));
      this.#events = events.filter((event) => !isCandidate(event.policy));
      // Events that came while the answer was on its way are not in it.
      this.#fresh = this.#fresh.filter((event) => event.seq > this.#newest && this.#isWanted(event));
      this.#show();
      this.#tellHeld();
    });
  }

  add(event) {
    if (event.seq <= this.#newest || !this.#isWanted(event)) return;
    this.#fresh.unshift(event);
    if (this.#fresh.length > GATHERED) this.#fresh.pop();
  }

  /** The service sent more than this page could take. */
  missed(messages) {
    this.#left += messages;
    this.#tellHeld();
  }

  /** Called once a second. */
  draw() {
    if (this.#isPaused) {
      this.#tellHeld();
    } else if (this.#fresh.length) {
      this.#events = [...this.#fresh, ...this.#events].slice(0, KEPT);
      this.#fresh = [];
      this.#show();
    }
  }

  #show() {
    if (this.#events.length === 0)
      this.#panel.note(this.#wanted().policy || this.#wanted().key ? 'No denial matches.' : 'Nothing has been denied.');
    else this.#panel.note('');
    list(byId('denials-rows'), rows(this.#events), identity, (row) => this.#row(row));
  }

  #row({ policy, key, mode, door }) {
    const open = () => this.hooks.openKey(policy, key);
    const at = el('time');
    const times = el('b', { class: 'times' });
    const said = el('span');
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
        el('td', { class: 'why' }, times, mode === 'shadow' ? el('b', { class: 'tag' }, 'shadow') : null, said),
        el('td', { class: 'wide' }, door),
      ),
      update: ({ last, count: n }) => {
        at.dateTime = last.at;
        at.title = last.at;
        say(at, time(last.at));
        say(times, n > 1 ? `${count(n)}×` : '');
        show(times, n > 1);
        say(said, `${why(last)}${last.source === 'store' ? '' : `, decided by ${last.source}`}`);
      },
    };
  }
}

/** Events, newest first, as rows: those of one second, policy, key and door together, told by the last of them. */
function rows(events) {
  const found = new Map();
  for (const event of events) {
    const { policy, key, mode, door } = event;
    const second = Math.floor(new Date(event.at).getTime() / 1000);
    const id = identity({ second, policy, key, mode, door });
    const row = found.get(id) ?? { second, policy, key, mode, door, last: event, count: 0 };
    row.count += 1;
    found.set(id, row);
  }
  return [...found.values()].slice(0, ROWS);
}

const identity = ({ second, policy, key, mode, door }) => JSON.stringify([second, policy, key, mode, door]);
