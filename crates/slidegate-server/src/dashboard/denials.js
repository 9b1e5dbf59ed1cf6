// Denials as they happen. They are gathered and drawn once a second: a burst would be unreadable one by one.

import { byId, el, list, say } from './dom.js';
import { Panel } from './panel.js';
import { count, identity, isCandidate, time, why } from './format.js';

/** Rows kept: as many as anyone scrolls through. */
const KEPT = 100;
/** Most that gather between two drawings, and while the list is paused. */
const GATHERED = 1000;

export class Denials {
  #panel;
  #events = [];
  #fresh = [];
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

  /** What the service remembers, under the filter. */
  refresh() {
    const path = () => {
      const query = new URLSearchParams({ limit: KEPT });
      for (const [name, value] of Object.entries(this.#wanted())) if (value) query.set(name, value);
      return `/v1/events?${query}`;
    };
    return this.#panel.load(path, ({ events }) => {
      this.#events = events.filter((event) => !isCandidate(event.policy));
      this.#fresh = [];
      this.#show();
      this.#tellHeld();
    });
  }

  add(event) {
    const { policy, key } = this.#wanted();
    if (isCandidate(event.policy) || (policy && event.policy !== policy) || (key && event.key !== key)) return;
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
    list(byId('denials-rows'), this.#events, identity, (event) => this.#row(event));
  }

  #row(event) {
    const open = () => this.hooks.openKey(event.policy, event.key);
    const isShadow = event.mode === 'shadow';
    const elsewhere = event.source && event.source !== 'store' ? `, decided by ${event.source}` : '';
    return {
      node: el(
        'tr',
        { 'data-mode': event.mode },
        el('td', { class: 'time' }, el('time', { datetime: event.at, title: event.at }, time(event.at))),
        el(
          'th',
          { scope: 'row' },
          el('button', { type: 'button', class: 'link key', title: event.key, onclick: open }, event.key),
          el('p', { class: 'under narrow' }, event.policy),
        ),
        el('td', { class: 'wide' }, event.policy),
        el('td', { class: 'why' }, isShadow ? el('b', { class: 'tag' }, 'shadow') : null, `${why(event)}${elsewhere}`),
        el('td', { class: 'wide' }, event.door),
      ),
      update: () => {},
    };
  }
}
