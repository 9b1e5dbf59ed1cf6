// Lists of keys: most used, most denied, closest to their limit, and blocked. Counts are estimates with an error bound.

import { byId, el, list, options, setText, show } from './dom.js';
import { exports } from './exports.js';
import { Panel } from './panel.js';
import { ago, compact, count, duration, isCandidate, percent, time, whose } from './format.js';

const LIMIT = 20;

/** The heading of the figures, and the end of the caption. */
const ORDERS = {
  used: ['Used', 'by charged cost'],
  denied: ['Denied', 'by denials'],
  closest: ['Taken', 'closest to their limit'],
  blocked: ['Until', 'that are blocked'],
};

export class Top {
  #panel;
  #form = byId('top-form');
  #shown = [];
  /** Names of shadow policies, which deny nothing. */
  #shadows = new Set();
  /** Whether the order was chosen here. */
  #isChosen = false;

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('top', 'Top keys', hooks);
    this.#form.addEventListener('change', ({ target }) => {
      this.#isChosen ||= target.name === 'by';
      this.refresh();
    });
    const whole = byId('whole-keys');
    whole.addEventListener('change', () => document.documentElement.toggleAttribute('data-whole-keys', whole.checked));
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    exports(byId('top'), 'keys', () => this.#shown.map(({ now, ...one }) => ({ ...one, ...now })));
  }

  choose(policy) {
    byId('top-policy').value = policy;
    this.refresh();
  }

  policiesChanged(policies) {
    this.#shadows = new Set(policies.filter(({ mode }) => mode === 'shadow').map(({ name }) => name));
    this.refresh();
  }

  /** Without a chosen order, keys that are denied come first: usage ends at the limit, so that it hides a flood. */
  denialsKnown(areThere) {
    const { by } = this.#form.elements;
    const order = areThere ? 'denied' : 'used';
    if (this.#isChosen || by.value === order) return;
    by.value = order;
    this.refresh();
  }

  /** Keys are those of all instances, unless one of several is chosen. */
  fleetChanged(fleet) {
    const instances = fleet?.instances ?? [];
    show(byId('top-of'), instances.length > 1);
    options(byId('top-instance'), [['', 'All'], ...instances.map(({ id, name }) => [id, name])]);
  }

  #query() {
    const [policy, instance] = ['top-policy', 'top-instance'].map((id) => byId(id).value);
    return { ...(policy && { policy }), ...(instance && { instance }), by: this.#form.elements.by.value, limit: LIMIT };
  }

  refresh() {
    return this.#panel.load(
      () => `/v1/top?${new URLSearchParams(this.#query())}`,
      (response) => this.#draw(response),
    );
  }

  #draw({ policy, by, keys, error_bound: bound, looked_up: looked, period_s: period, ...all }) {
    const [heading, what] = ORDERS[by];
    setText(byId('top-count'), heading);
    byId('top').dataset.by = by;
    setText(byId('top-last'), by === 'blocked' ? 'By' : 'Last');
    setText(byId('top-caption'), `Keys of ${policy ?? 'all policies'} ${what}`);
    this.#shown = keys.filter((one) => !isCandidate(one.policy));
    const isCounted = by === 'used' || by === 'denied';
    const span = isCounted && `In the last ${period / 60} to ${(2 * period) / 60} minutes.`;
    const error = isCounted && (bound ? `Counts are at most ${count(bound)} too high.` : 'Counts are exact.');
    const isClosest = by === 'closest';
    const of = isClosest && `The ${count(looked)} keys that were fullest at their last decision, from 1 % on, by what is taken now.`;
    const bars = by !== 'blocked' && 'Bars: taken of the limit now.';
    const text = this.#shown.length ? [of, span, error, bars] : ['No keys.', span];
    setText(byId('top-bound'), [...text, by !== 'blocked' && whose(all)].filter(Boolean).join(' '));
    list(
      byId('top-rows'),
      this.#shown.map((one) => ({ ...one, by, blocker: one.by })),
      (one) => JSON.stringify([policy, one.policy, one.key]),
      ({ key, policy: under }) => {
        const figure = el('span');
        const bar = el('i', { class: 'bar', 'aria-hidden': 'true', 'data-by': 'used' });
        const more = el('p', { class: 'under' });
        const last = el('td', { class: 'n last' });
        const named = el('p', { class: 'under' });
        const open = () => this.hooks.openKey(under, key);
        return {
          node: el(
            'tr',
            {},
            el(
              'th',
              { scope: 'row' },
              el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
              named,
            ),
            el('td', { class: 'n counted' }, figure, bar, more),
            last,
          ),
          update: (one) => {
            setText(named, [policy ? '' : under, this.#shadows.has(under) && 'shadow'].filter(Boolean).join(', '));
            setText(figure, figureOf(one));
            setText(more, moreOf(one));
            bar.hidden = !one.now;
            if (one.now) bar.style.setProperty('--part', one.share);
            bar.toggleAttribute('data-full', Boolean(one.now) && one.share >= 1);
            setText(last, one.by === 'blocked' ? one.blocker : one.last_at ? ago(one.last_at) : '–');
          },
        };
      },
    );
  }
}

function figureOf({ by, count: counted, at_most_over: over, until, share }) {
  if (by === 'blocked') return time(until);
  if (by === 'closest') return percent(Math.round(1000 * share), 1000);
  return compact(counted) + (over ? ` −${compact(over)}` : '');
}

function moreOf({ by, held, now }) {
  if (by === 'blocked') return '';
  if (by === 'closest' && !now) return 'at its last decision';
  const wait = now && waitText(now);
  return [
    now && `${compact(Math.max(0, now.limit - now.remaining))} of ${compact(now.limit)}`,
    held ? `${compact(held)} held` : '',
    wait,
  ]
    .filter(Boolean)
    .join(', ');
}

function waitText({ is_blocked: isBlocked, retry_after_ms: wait }) {
  if (isBlocked) return 'blocked';
  if (wait === null) return 'never fits';
  return wait > 0 ? `wait ${duration(wait)}` : '';
}
