// Key panel: one key's usage over time, and its actions.

import { byId, el, fact, list, setText, show } from './dom.js';
import { confirmed } from './confirm.js';
import { HttpError, Unavailable, keyPath, request } from './api.js';
import { errorText } from './panel.js';
import { count, duration, identity, quota, time, why } from './format.js';
import { UsageChart, chargesOf } from './usage_chart.js';

/**
 * Actions: the form or button, and the request body. `preview(state, body)` are the facts of a confirmation, `undo(state,
 * body)` the action that takes it back, if there is one.
 */
const ACTIONS = {
  reset: {
    form: 'act-reset',
    body: () => ({}),
    preview: (state) => [
      ['Now', usedText(state)],
      ['After', `used 0 of ${quota(state)}. It cannot be undone.`],
    ],
  },
  refund: { form: 'act-refund', body: (form) => ({ cost: form.cost.valueAsNumber }) },
  penalize: {
    form: 'act-penalize',
    body: (form) => ({ cost: form.cost.valueAsNumber }),
    undo: (_, { cost }) => ['refund', { cost }],
  },
  block: {
    form: 'act-block',
    body: (form) => ({ for: form.for.value.trim() }),
    preview: (state, body) => [
      ['Now', `${usedText(state)}, cost 1 fits ${waitText(state)}`],
      ['After', `every request is denied for ${body.for}, on all instances`],
    ],
    undo: ({ block }) => !block && ['unblock', {}],
  },
  override: {
    form: 'act-override',
    body: (form) => ({ quota: form.quota.value.trim(), for: form.for.value.trim() }),
    preview: (state, body) => [
      ['Now', quota(state)],
      ['After', `${body.quota} for ${body.for}, on all instances. Usage is kept.`],
    ],
    undo: ({ override }) => !override && ['clear-override', {}],
  },
  unblock: { button: 'act-unblock', body: () => ({}) },
  'clear-override': { button: 'act-clear-override', body: () => ({}) },
};

const usedText = (state) => `used ${count(state.used)} of ${quota(state)}`;

export class Key {
  #hooks;
  #open = null;
  /** The last response about the open key. */
  #state = null;
  #requests = 0;
  #chart = new UsageChart();
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
  }

  policiesChanged(policies) {
    const isFirst = this.#scopes.size === 0;
    this.#scopes = new Map(policies.map(({ name, scope }) => [name, scope]));
    // The URL may have opened a key before the policies were loaded.
    if (isFirst && this.#open) byId('key-policy').value = this.#open.policy;
    this.#hint();
  }

  #hint() {
    const scope = this.#scopes.get(byId('key-policy').value) ?? [];
    const text = byId('key-text');
    if (scope.length === 0 && this.#scopes.size) text.value = '*';
    else if (text.value === '*') text.value = '';
    const hint = { 0: 'no scope: all requests share the key *', 1: `the key is the value of ${scope[0]}` }[
      scope.length
    ];
    setText(
      byId('keys-hint'),
      this.#scopes.size ? (hint ?? `the key is the values of ${scope.join(', ')}, joined by commas`) : '',
    );
  }

  /** The fragment `#key/POLICY/KEY` opens that key, so that it can be shared as a link. */
  openFromUrl() {
    const [, policy, key] = /^#key\/([^/]+)\/(.+)$/.exec(location.hash) ?? [];
    if (!policy) return;
    try {
      this.open(decodeURIComponent(policy), decodeURIComponent(key));
    } catch {
      this.#setNote(`Invalid link to a key: ${location.hash}`);
    }
  }

  async open(policy, key) {
    this.#open = { policy, key };
    byId('key-policy').value = policy;
    byId('key-text').value = key;
    this.#hintFor(policy);
    const address = `#key/${encodeURIComponent(policy)}/${encodeURIComponent(key)}`;
    if (location.hash !== address) history.replaceState(null, '', address);
    setText(byId('act-result'), '');
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
    this.#setNote('');
    history.replaceState(null, '', location.pathname);
    byId('key-text').focus();
  }

  #setNote(text) {
    setText(this.#note, text);
    show(this.#note, text !== '');
  }

  async refresh() {
    if (!this.#open) return;
    const { policy, key } = this.#open;
    const number = ++this.#requests;
    try {
      const state = await request(keyPath(policy, key));
      if (number !== this.#requests) return; // another key was opened meanwhile
      this.#setNote('');
      this.#draw(state);
      this.#hooks.keyLoaded(true);
    } catch (error) {
      if (number !== this.#requests) return;
      if (error instanceof Unavailable) this.#hooks.keyLoaded(false);
      if (error instanceof HttpError && error.status === 401) this.#hooks.tokenRequired(error);
      // While the service is unreachable the last data stays: the banner shows its age.
      if (!(error instanceof Unavailable)) show(byId('key-view'), false);
      this.#setNote(errorText(error, 'This key'));
    }
    show(byId('key-close'), this.#open !== null);
  }

  #draw(state) {
    this.#state = state;
    show(byId('key-view'), true);
    setText(byId('key-name'), state.key);
    setText(byId('key-under'), state.policy);
    const { block, override, plan } = state;
    const marks = [
      plan && ['plan', `plan ${plan}`],
      block && ['blocked', `blocked until ${time(block.until)} by ${block.by}`],
      override && [
        'override',
        `override ${override.limit === null ? 'unlimited' : quota(override)} until ${time(override.until)} by ${override.by}`,
      ],
    ].filter(Boolean);
    list(
      byId('key-marks'),
      marks,
      ([name]) => name,
      ([name]) => {
        const node = el('b', { class: 'tag', 'data-mark': name });
        return { node, update: ([, text]) => setText(node, text) };
      },
    );
    show(byId('act-unblock'), Boolean(block));
    show(byId('act-clear-override'), Boolean(override));

    const facts = [
      ['Used', count(state.used)],
      ...(state.held ? [['Held', `${count(state.held)} by ${count(state.open_holds)} reservation${state.open_holds === 1 ? '' : 's'}`]] : []),
      ['Remaining', count(state.remaining)],
      ['Quota', quota(state)],
      ['Algorithm', state.algorithm],
      ['Cost 1 fits', waitText(state)],
      ['Next free', nextFreeText(state)],
      ['Unused', state.reset_after_ms ? `in ${duration(state.reset_after_ms)}` : 'now'],
    ];
    list(
      byId('key-facts'),
      facts,
      ([name]) => name,
      ([name]) => {
        const node = fact(name, '');
        return { node, update: ([, value]) => setText(node.lastChild, value) };
      },
    );

    this.#chart.draw(state);
    setText(
      byId('key-chart-hint'),
      chargesOf(state).length
        ? 'Left of now: charges that still count, cumulative. Right of now: usage if nothing more is charged. ' +
            'Dotted: the limit.'
        : 'Usage if nothing more is charged. Dotted: the limit.',
    );
    list(
      byId('key-room'),
      [{ in_ms: 0, used: state.used }, ...state.room.filter(({ in_ms: wait }) => wait > 0)].map((one) => ({
        ...one,
        remaining: Math.max(0, state.limit - one.used),
      })),
      ({ in_ms: wait }) => wait,
      ({ in_ms: wait }) => {
        const [used, remaining] = [0, 1].map(() => el('td', { class: 'n' }));
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, wait === 0 ? 'now' : duration(wait)), used, remaining),
          update: (now) => {
            setText(used, count(now.used));
            setText(remaining, count(now.remaining));
          },
        };
      },
    );

    const holds = state.holds ?? [];
    show(byId('key-holds'), holds.length > 0);
    setText(byId('key-holds-count'), count(state.open_holds ?? holds.length));
    list(
      byId('key-holds-list'),
      holds,
      ({ id }) => id,
      () => {
        const node = el('li');
        return { node, update: (one) => setText(node, holdText(one)) };
      },
    );

    show(byId('key-denials'), state.denials.length > 0);
    setText(byId('key-denials-count'), count(state.denials.length));
    list(byId('key-denials-list'), state.denials, identity, (event) => ({
      node: el('li', {}, el('time', { datetime: event.at }, time(event.at)), ` ${why(event, state)}`),
      update: () => {},
    }));
  }

  async #act(name, action) {
    if (!this.#open) return;
    const { policy, key } = this.#open;
    const before = this.#state;
    const body = action.body(action.form ? byId(action.form).elements : null);
    if (action.preview) {
      if (!(await this.#isValid(name, body, { policy, key }))) return;
      const affects = [`one key: ${before.key} under ${policy}`, await recentText(policy, before.key)];
      const facts = [...action.preview(before, body), ['Affects', affects.filter(Boolean).join('\n')]];
      const title = byId(action.form).querySelector('button').textContent;
      if (!(await confirmed({ title, facts, action: title }))) return;
    }
    await this.#send(name, body, { policy, key }, action.undo?.(before, body));
  }

  /** Whether the service would take a change. If not, it is said why, before anybody confirms it. */
  async #isValid(name, body, target) {
    try {
      await request(`${keyPath(target.policy, target.key)}/${name}`, { method: 'POST', body: { ...body, dry_run: true } });
      return true;
    } catch (error) {
      this.#failed(error);
      return false;
    }
  }

  #failed(error) {
    if (error instanceof HttpError && error.status === 401) this.#hooks.tokenRequired(error);
    if (error instanceof HttpError && error.status === 403) this.#hooks.readOnly();
    setText(byId('act-result'), errorText(error, 'Not done'));
    byId('act-result').dataset.state = 'failed';
  }

  /** Sends a change, and shows the result, with a button that sends `undo`, an action and its body. */
  async #send(name, body, target, undo) {
    const result = byId('act-result');
    this.#setBusy(true);
    try {
      const { done } = await request(`${keyPath(target.policy, target.key)}/${name}`, { method: 'POST', body });
      setText(result, `Done: ${done}.`);
      if (undo) {
        const onclick = () => this.#send(undo[0], undo[1], target);
        result.append(' ', el('button', { type: 'button', class: 'quiet', onclick }, 'Undo'));
      }
      result.dataset.state = 'done';
    } catch (error) {
      this.#failed(error);
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

/** What the lists of top keys say about a key; empty if it is in none of them, or they are off. */
async function recentText(policy, key) {
  const counted = async ([by, word]) => {
    const { keys, sampled, period_s: period } = await request(`/v1/top?${new URLSearchParams({ policy, by, limit: 100 })}`);
    const one = keys.find((one) => one.key === key);
    if (!one) return '';
    const most = one.at_most_over ? `${count(one.count - one.at_most_over)} to ${count(one.count)}` : count(one.count);
    return `${word} ${sampled ? 'about ' : ''}${most} in the last ${period / 60} to ${(2 * period) / 60} minutes`;
  };
  try {
    const texts = await Promise.all([['used', 'cost charged:'], ['denied', 'requests denied:']].map(counted));
    return texts.filter(Boolean).join('\n');
  } catch (error) {
    errorText(error, 'Top keys'); // rethrows bugs of this page
    return '';
  }
}

const holdText = ({ id, held, settled, ends_in_ms: ends }) =>
  `${id}: holds ${count(held)}${settled ? `, ${count(settled)} settled` : ''}, ends in ${duration(ends)}`;

const nextFreeText = ({ frees_after_ms: ms, reason }) => {
  if (ms === null) return reason === 'blocked' ? 'not while blocked' : 'no usage';
  return `in ${duration(ms)}`;
};

const waitText = ({ retry_after_ms: ms, reason }) => {
  if (ms === null) return reason === 'blocked' ? 'not while blocked' : 'never: above the limit';
  return ms === 0 ? 'now' : `in ${duration(ms)}`;
};
