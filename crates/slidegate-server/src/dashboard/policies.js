// Policies panel: quota, decisions, and a sparkline of the last minute.

import { byId, el, list, options, setText, show, svg } from './dom.js';
import { Panel } from './panel.js';
import { compact, count, percent, quota } from './format.js';

const SPARK_S = 60;
const WIDTH = 120;
const HEIGHT = 22;

export class Policies {
  #panel;
  #hooks;
  /** The last minute of each policy: a list of `[allowed, denied]`. */
  #minutes = new Map();
  #chosen = '';
  #sparks = new Map();
  all = [];

  constructor(hooks) {
    this.#hooks = hooks;
    this.#panel = new Panel('policies', 'Policies', hooks);
  }

  refresh() {
    return this.#panel.load('/v1/policies', ({ policies }) => this.#draw(policies));
  }

  /** Whether no policy has decided anything yet. */
  isIdle() {
    return this.all.every(({ counts }) => counts && counts.allowed + counts.denied + counts.shadow_denied === 0);
  }

  addRates(byPolicy) {
    for (const { name } of this.all) {
      const minute = this.#minutes.get(name) ?? [];
      const { allowed = 0, denied = 0 } = byPolicy?.[name] ?? {};
      minute.push([allowed, denied]);
      if (minute.length > SPARK_S) minute.shift();
      this.#minutes.set(name, minute);
      this.#sparks.get(name)?.(minute);
    }
  }

  #draw(policies) {
    this.all = policies;
    const names = policies.map(({ name }) => [name, name]);
    options(byId('top-policy'), [['', 'All'], ...names]);
    options(byId('denials-policy'), [['', 'All'], ...names]);
    options(byId('key-policy'), names);
    list(
      byId('policies-rows'),
      policies,
      ({ name }) => name,
      (policy) => this.#row(policy),
    );
    this.#hooks.policiesChanged(policies);
  }

  #choose(name) {
    this.#chosen = this.#chosen === name ? '' : name;
    for (const button of byId('policies-rows').querySelectorAll('button.link')) {
      button.setAttribute('aria-pressed', String(button.textContent === this.#chosen));
    }
    this.#hooks.policyChosen(this.#chosen);
  }

  #edit(name) {
    this.#hooks.editLimit(this.all.find((policy) => policy.name === name));
  }

  #row({ name }) {
    const button = el(
      'button',
      { type: 'button', class: 'link', 'aria-pressed': 'false', onclick: () => this.#choose(name) },
      name,
    );
    const edit = el(
      'button',
      {
        type: 'button',
        class: 'quiet write',
        'aria-label': `Edit the limit of ${name}`,
        onclick: () => this.#edit(name),
      },
      'Edit',
    );
    const marks = el('span', { class: 'marks' });
    const under = el('p', { class: 'under' });
    const narrow = el('p', { class: 'under narrow' });
    const quotaCell = el('td', { class: 'wide' });
    const spark = el('td', { class: 'wide spark' });
    const [allowed, denied, nearLimit, shadow] = [0, 1, 2, 3].map(() => el('td', { class: 'n' }));
    nearLimit.classList.add('wide');
    shadow.classList.add('wide');
    const bar = el('i', { class: 'bar', 'aria-hidden': 'true' });
    const share = el('span');
    this.#sparks.set(name, sparkline(spark));
    this.#sparks.get(name)(this.#minutes.get(name) ?? []);
    return {
      node: el(
        'tr',
        {},
        el('th', { scope: 'row' }, button, ' ', edit, marks, under, narrow),
        quotaCell,
        spark,
        allowed,
        denied,
        el('td', { class: 'n share' }, share, bar),
        nearLimit,
        shadow,
      ),
      update: (policy) => {
        const counts = policy.counts ?? {};
        const isShadow = policy.mode === 'shadow';
        const text = quotaText(policy);
        setText(
          marks,
          [
            isShadow && 'shadow',
            policy.origin === 'changed' && 'changed at run time',
            policy.origin === 'added' && 'added at run time',
            policy.candidate && 'candidate',
            policy.overrides > 0 && `${count(policy.overrides)} override${policy.overrides === 1 ? '' : 's'}`,
            policy.keys_changed > 0 && `${count(policy.keys_changed)} temporarily changed`,
          ]
            .filter(Boolean)
            .join(' · '),
        );
        setText(under, [scopeText(policy), openText(policy)].filter(Boolean).join('; '));
        setText(quotaCell, text);
        setText(narrow, text);
        setText(allowed, figure(counts.allowed));
        setText(denied, figure(counts.denied));
        setText(nearLimit, figure(counts.near_limit));
        setText(shadow, figure(counts.shadow_denied));
        const decided = (counts.allowed ?? 0) + (counts.denied ?? 0);
        setText(share, percent(counts.denied ?? 0, decided));
        bar.style.setProperty('--part', decided ? counts.denied / decided : 0);
        show(marks, marks.textContent !== '');
        show(under, under.textContent !== '');
      },
    };
  }
}

/** A figure, or a dash if it is missing. */
const figure = (n) => (n === undefined ? '–' : compact(n));

const quotaText = (policy) =>
  `${quota(policy.limit, policy.window_ms, policy.algorithm)} ${policy.algorithm}${policy.burst ? `, burst ${count(policy.burst)}` : ''}`;

function scopeText({ scope, when }) {
  const conditions = Array.isArray(when) ? when : [];
  return [
    scope.length ? `per ${scope.join(' and ')}` : 'all requests share one key',
    conditions.length && `when ${conditions.join(' and ')}`,
  ]
    .filter(Boolean)
    .join(', ');
}

/** What reservations of this instance hold. */
function openText({ open_reservations: open, held_cost: held }) {
  return open > 0 && `${count(open)} open reservation${open === 1 ? '' : 's'} of ${count(held)}`;
}

/** The last minute: allowed as an area, denied as a line. Returns the draw function. */
function sparkline(container) {
  const allowed = svg('path', { class: 'allowed' });
  const denied = svg('path', { class: 'denied' });
  const drawing = svg(
    'svg',
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: 'img' },
    allowed,
    denied,
  );
  container.append(drawing);
  return (minute) => {
    const most = Math.max(1, ...minute.map((pair) => Math.max(...pair)));
    const x = (at) => (WIDTH * (SPARK_S - minute.length + at)) / (SPARK_S - 1);
    const y = (n) => (HEIGHT - 2 - ((HEIGHT - 4) * n) / most).toFixed(1);
    const line = (which) => minute.map((pair, at) => `${at ? 'L' : 'M'}${x(at).toFixed(1)} ${y(pair[which])}`).join('');
    const sum = (which) => minute.reduce((total, pair) => total + pair[which], 0);
    allowed.setAttribute('d', minute.length ? `${line(0)}L${WIDTH} ${HEIGHT}L${x(0).toFixed(1)} ${HEIGHT}Z` : '');
    denied.setAttribute('d', sum(1) ? line(1) : '');
    drawing.setAttribute('aria-label', `${count(sum(0))} allowed and ${count(sum(1))} denied in the last minute`);
  };
}
