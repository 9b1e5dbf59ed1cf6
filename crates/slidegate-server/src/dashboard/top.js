// Top keys panel: the keys with the most usage or denials. Counts are estimates with an error bound.

import { byId, el, list, setText } from './dom.js';
import { Panel } from './panel.js';
import { ago, compact, count, isCandidate } from './format.js';

const LIMIT = 20;

export class Top {
  #panel;
  #form = byId('top-form');

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('top', 'Top keys', hooks);
    this.#form.addEventListener('change', () => this.refresh());
    this.#form.addEventListener('submit', (event) => event.preventDefault());
  }

  choose(policy) {
    byId('top-policy').value = policy;
    this.refresh();
  }

  #query() {
    const policy = byId('top-policy').value;
    return { ...(policy && { policy }), by: this.#form.elements.by.value, limit: LIMIT };
  }

  refresh() {
    return this.#panel.load(
      () => `/v1/top?${new URLSearchParams(this.#query())}`,
      (response) => this.#draw(response),
    );
  }

  #draw({ policy, by, keys, error_bound: bound }) {
    setText(byId('top-count'), by === 'denied' ? 'Denied' : 'Used');
    setText(byId('top-caption'), `Top keys of ${policy ?? 'all policies'} by ${by === 'denied' ? 'denials' : 'usage'}`);
    setText(
      byId('top-bound'),
      keys.length === 0 ? 'No keys yet.' : bound ? `Counts are at most ${count(bound)} too high.` : 'Counts are exact.',
    );
    const shown = keys.filter((one) => !isCandidate(one.policy));
    const most = Math.max(1, ...shown.map((one) => one.count));
    const items = shown.map((one) => ({ ...one, by, part: one.count / most }));
    list(
      byId('top-rows'),
      items,
      (one) => JSON.stringify([policy, one.policy, one.key]),
      ({ key, policy: under }) => {
        const n = el('span');
        const over = el('span', { class: 'over' });
        const bar = el('i', { class: 'bar', 'aria-hidden': 'true' });
        const last = el('td', { class: 'n last' });
        const open = () => this.hooks.openKey(under, key);
        return {
          node: el(
            'tr',
            {},
            el(
              'th',
              { scope: 'row' },
              el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
              policy ? null : el('p', { class: 'under' }, under),
            ),
            el('td', { class: 'n counted' }, n, over, bar),
            last,
          ),
          update: (now) => {
            setText(n, compact(now.count));
            n.title = count(now.count);
            const held = now.held ? ` +${compact(now.held)} held` : '';
            setText(over, (now.at_most_over ? ` −${compact(now.at_most_over)}` : '') + held);
            bar.dataset.by = now.by;
            bar.style.setProperty('--part', now.part);
            setText(last, now.last_at ? ago(now.last_at) : '–');
          },
        };
      },
    );
  }
}
