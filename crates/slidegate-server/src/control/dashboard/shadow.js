// Shadow panel: what candidates and shadow policies would change.

import { byId, el, list, setText, show } from './dom.js';
import { confirmed } from './confirm.js';
import { HttpError, request } from './api.js';
import { Panel, errorText } from './panel.js';
import { ago, compact, count, percent, quota, whose } from './format.js';

/** Maximum keys shown per candidate. */
const MAX_KEYS = 4;

export class Shadow {
  #panel;

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('shadow', 'Shadow differences', hooks);
  }

  refresh() {
    return this.#panel.load('/v1/shadow', (response) => this.#draw(response));
  }

  #draw({ candidates, shadows, ...all }) {
    setText(byId('shadow-of'), candidates.length + shadows.length ? whose(all) : '');
    show(byId('candidates'), candidates.length > 0);
    show(byId('shadows'), shadows.length > 0);
    if (candidates.length + shadows.length === 0) {
      this.#panel.note(
        'No limit is being tried. Put a policy in shadow mode, or give it a candidate, to see what it would deny.',
      );
    }
    list(
      byId('candidates-rows'),
      candidates,
      ({ policy }) => policy,
      (one) => this.#candidate(one),
    );
    list(
      byId('shadows-rows'),
      shadows,
      ({ policy }) => policy,
      ({ policy }) => {
        const [requests, denies, share] = [0, 1, 2].map(() => el('td', { class: 'n' }));
        const bar = el('i', { class: 'bar', 'data-by': 'shadow', 'aria-hidden': 'true' });
        const shareText = el('span');
        share.classList.add('share');
        share.append(shareText, bar);
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, policy), requests, denies, share),
          update: (now) => {
            setText(requests, requestsText(now));
            setText(denies, compact(now.would_deny));
            setText(shareText, percent(now.would_deny, now.requests));
            bar.style.setProperty('--part', now.requests ? now.would_deny / now.requests : 0);
          },
        };
      },
    );
  }

  #candidate({ policy }) {
    let shown;
    const [requests, denied, allowed] = [0, 1, 2].map(() => el('td', { class: 'n' }));
    requests.classList.add('wide');
    const quotas = el('span', { class: 'quotas' });
    const keys = el('td', { class: 'wide' });
    const promote = el(
      'button',
      { type: 'button', class: 'write', onclick: () => this.#promote(shown) },
      'Promote',
    );
    promote.setAttribute('aria-label', `Promote the candidate of ${policy}`);
    return {
      node: el(
        'tr',
        {},
        el('th', { scope: 'row' }, policy),
        el('td', {}, quotas, ' ', promote),
        requests,
        denied,
        allowed,
        keys,
      ),
      update: (now) => {
        shown = now;
        setText(quotas, `${quota(now.live)} → ${quota(now.candidate)}`);
        setText(requests, requestsText(now));
        setText(denied, compact(now.newly_denied));
        setText(allowed, compact(now.newly_allowed));
        list(
          keys,
          now.keys.slice(0, MAX_KEYS),
          ({ key }) => key,
          ({ key }) => {
            const open = () => this.hooks.openKey(policy, key);
            const more = el('span');
            return {
              node: el(
                'span',
                { class: 'moved' },
                el('button', { type: 'button', class: 'link key', title: key, onclick: open }, key),
                more,
              ),
              update: (one) => setText(more, ` +${count(one.newly_denied)} −${count(one.newly_allowed)}`),
            };
          },
        );
      },
    };
  }

  async #promote({ policy, live, candidate, requests, since, newly_denied: denied, newly_allowed: allowed }) {
    const share = (n, what) => `${percent(n, requests)} of ${compact(requests)} compared requests are ${what}`;
    const compared = `${share(denied, 'newly denied')}, ${percent(allowed, requests)} newly allowed; the comparison began ${since && ago(since)}`;
    const facts = [
      ['Now', quota(live)],
      ['After', `${quota(candidate)}, at once and on all instances. Usage is kept.`],
      ['Affects', `all keys of ${policy}: ${requests ? compared : 'no request was compared yet'}`],
    ];
    if (!(await confirmed({ title: `Promote the candidate of ${policy}`, facts, action: 'Promote' }))) return;
    await this.#send(`/v1/policies/${encodeURIComponent(policy)}/promote`, 'Promote', ({ change }) => {
      const onclick = () => this.#send(`/v1/changes/${change}/undo`, 'Undo', () => `Undone. ${policy} is as before.`);
      return [`The candidate of ${policy} is active. `, el('button', { type: 'button', class: 'quiet write', onclick }, 'Undo')];
    });
  }

  /** Sends a change, and shows what `done(response)` returns. */
  async #send(path, what, done) {
    const result = byId('shadow-result');
    try {
      result.replaceChildren(...[done(await request(path, { method: 'POST', body: {} }))].flat());
      this.hooks.changed();
    } catch (error) {
      if (error instanceof HttpError && error.status === 403) this.hooks.readOnly();
      setText(result, errorText(error, what));
    }
  }
}

/** How many requests, and when the count began. */
const requestsText = ({ requests, since }) => compact(requests) + (since ? `, first ${ago(since)}` : '');
