// One key: its window over time, and what can be done with it.

import { byId, el, fact, list, say, show } from './dom.js';
import { Away, Refusal, ask, keyPath } from './api.js';
import { sentence } from './panel.js';
import { count, duration, identity, quota, time, why } from './format.js';
import { Window, chargesOf } from './window.js';

/** What can be done: the form or button for it, and what it sends. */
const ACTIONS = {
  reset: { form: 'act-reset', body: () => ({}) },
  refund: { form: 'act-refund', body: (form) => ({ cost: form.cost.valueAsNumber }) },
  penalize: { form: 'act-penalize', body: (form) => ({ cost: form.cost.valueAsNumber }) },
  block: { form: 'act-block', body: (form) => ({ for: form.for.value.trim() }) },
  override: {
    form: 'act-override',
    body: (form) => ({ quota: form.quota.value.trim(), for: form.for.value.trim() }),
  },
  unblock: { button: 'act-unblock', body: () => ({}) },
  'clear-override': { button: 'act-clear-override', body: () => ({}) },
};

export class Key {
  #hooks;
  #open = null;
  #asked = 0;
  #window = new Window();
  #note = document.querySelector('#keys > .note');
  #scopes = new Map();

  constructor(hooks) {
    this.#hooks = hooks;
    byId('key-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.open(byId('key-policy').value, byId('key-text').value);
    });
    byId('key-policy').addEventListener('change', () => this.#hint());
    byId('key-close').addEventListener('click', () => this.close());
    for (const [name, action] of Object.entries(ACTIONS)) {
      const run = (event) => {
        event.preventDefault();
        this.#act(name, action);
      };
      if (action.form) byId(action.form).addEventListener('submit', run);
      else byId(action.button).addEventListener('click', run);
    }
    addEventListener('hashchange', () => this.openFromAddress());
  }

  policiesChanged(policies) {
    const isFirst = this.#scopes.size === 0;
    this.#scopes = new Map(policies.map(({ name, scope }) => [name, scope]));
    // A key of the address may have been opened before there was anything to choose from.
    if (isFirst && this.#open) byId('key-policy').value = this.#open.policy;
    this.#hint();
  }

  #hint() {
    const scope = this.#scopes.get(byId('key-policy').value) ?? [];
    const text = byId('key-text');
    if (scope.length === 0 && this.#scopes.size) text.value = '*';
    else if (text.value === '*') text.value = '';
    const words = { 0: 'all requests count together, under the key *', 1: `a key is the value of ${scope[0]}` }[
      scope.length
    ];
    say(
      byId('keys-hint'),
      this.#scopes.size ? (words ?? `a key is the values of ${scope.join(', ')}, joined by commas`) : '',
    );
  }

  /** `#key/POLICY/KEY` in the address opens that key, so that it can be sent to a colleague. */
  openFromAddress() {
    const [, policy, key] = /^#key\/([^/]+)\/(.+)$/.exec(location.hash) ?? [];
    if (!policy) return;
    try {
      this.open(decodeURIComponent(policy), decodeURIComponent(key));
    } catch {
      this.#say(`The address names no key: ${location.hash}`);
    }
  }

  async open(policy, key) {
    this.#open = { policy, key };
    byId('key-policy').value = policy;
    byId('key-text').value = key;
    this.#hintFor(policy);
    const address = `#key/${encodeURIComponent(policy)}/${encodeURIComponent(key)}`;
    if (location.hash !== address) history.replaceState(null, '', address);
    say(byId('act-result'), '');
    await this.refresh();
    byId('keys-title').focus({ preventScroll: true });
    byId('keys').scrollIntoView({ block: 'start' });
  }

  #hintFor(policy) {
    if (this.#scopes.has(policy)) this.#hint();
  }

  close() {
    this.#open = null;
    show(byId('key-view'), false);
    show(byId('key-close'), false);
    this.#say('');
    history.replaceState(null, '', location.pathname);
    byId('key-text').focus();
  }

  #say(text) {
    say(this.#note, text);
    show(this.#note, text !== '');
  }

  async refresh() {
    if (!this.#open) return;
    const { policy, key } = this.#open;
    const asked = ++this.#asked;
    try {
      const seen = await ask(keyPath(policy, key));
      if (asked !== this.#asked) return; // another key was opened meanwhile
      this.#say('');
      this.#draw(seen);
    } catch (error) {
      if (asked !== this.#asked) return;
      if (error instanceof Refusal && error.status === 401) this.#hooks.tokenWanted(error);
      // What is drawn stays while the service is away: the banner says how old it is.
      if (!(error instanceof Away)) show(byId('key-view'), false);
      this.#say(sentence(error, 'This key'));
    }
    show(byId('key-close'), this.#open !== null);
  }

  #draw(seen) {
    show(byId('key-view'), true);
    say(byId('key-name'), seen.key);
    say(byId('key-under'), seen.policy);
    const { block, override } = seen;
    const marks = [
      block && ['blocked', `blocked until ${time(block.until)} by ${block.by}`],
      override && [
        'override',
        `override ${quota(override.limit, override.window_ms)} until ${time(override.until)} by ${override.by}`,
      ],
    ].filter(Boolean);
    list(
      byId('key-marks'),
      marks,
      ([name]) => name,
      ([name]) => {
        const node = el('b', { class: 'tag', 'data-mark': name });
        return { node, update: ([, text]) => say(node, text) };
      },
    );
    show(byId('act-unblock'), Boolean(block));
    show(byId('act-clear-override'), Boolean(override));

    const facts = [
      ['Used', count(seen.used)],
      ['Remaining', count(seen.remaining)],
      ['Quota', quota(seen.limit, seen.window_ms)],
      ['Algorithm', seen.algorithm],
      ['Cost 1 fits', waitWords(seen)],
      ['Next room', roomWords(seen)],
      ['As new', seen.reset_after_ms ? `in ${duration(seen.reset_after_ms)}` : 'now'],
    ];
    list(
      byId('key-facts'),
      facts,
      ([name]) => name,
      ([name]) => {
        const node = fact(name, '');
        return { node, update: ([, value]) => say(node.lastChild, value) };
      },
    );

    this.#window.draw(seen);
    say(
      byId('key-chart-hint'),
      chargesOf(seen).length
        ? 'Left of now the charges that still count, added up; right of it what is left if nothing more is charged. ' +
            'Dotted: the limit.'
        : 'What is left of the usage if nothing more is charged. Dotted: the limit.',
    );
    list(
      byId('key-room'),
      [{ in_ms: 0, used: seen.used }, ...seen.room.filter(({ in_ms: wait }) => wait > 0)].map((one) => ({
        ...one,
        remaining: Math.max(0, seen.limit - one.used),
      })),
      ({ in_ms: wait }) => wait,
      ({ in_ms: wait }) => {
        const [used, remaining] = [0, 1].map(() => el('td', { class: 'n' }));
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, wait === 0 ? 'now' : duration(wait)), used, remaining),
          update: (now) => {
            say(used, count(now.used));
            say(remaining, count(now.remaining));
          },
        };
      },
    );

    show(byId('key-denials'), seen.denials.length > 0);
    say(byId('key-denials-count'), count(seen.denials.length));
    list(byId('key-denials-list'), seen.denials, identity, (event) => ({
      node: el('li', {}, el('time', { datetime: event.at }, time(event.at)), ` ${why(event)}`),
      update: () => {},
    }));
  }

  async #act(name, action) {
    if (!this.#open) return;
    const { policy, key } = this.#open;
    const body = action.body(action.form ? byId(action.form).elements : null);
    const result = byId('act-result');
    this.#setBusy(true);
    try {
      const { done } = await ask(`${keyPath(policy, key)}/${name}`, { method: 'POST', body });
      say(result, `Done: ${done}.`);
      result.dataset.state = 'done';
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) this.#hooks.tokenWanted(error);
      if (error instanceof Refusal && error.status === 403) this.#hooks.readOnly(error);
      say(result, sentence(error, 'Not done'));
      result.dataset.state = 'failed';
    } finally {
      this.#setBusy(false);
    }
    await this.refresh();
    this.#hooks.changed();
  }

  #setBusy(isBusy) {
    document.querySelector('.key-acts').toggleAttribute('aria-busy', isBusy);
  }
}

const roomWords = ({ frees_after_ms: ms, reason }) => {
  if (ms === null) return reason === 'blocked' ? 'not while it is blocked' : 'nothing is used';
  return `in ${duration(ms)}`;
};

const waitWords = ({ retry_after_ms: ms, reason }) => {
  if (ms === null) return reason === 'blocked' ? 'not while it is blocked' : 'never: above the limit';
  return ms === 0 ? 'now' : `in ${duration(ms)}`;
};
