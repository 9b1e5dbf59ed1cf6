// Policies panel: quota, rates, and a sparkline of the chosen range.

import { byId, el, list, options, setText, show, svg } from './dom.js';
import { Panel } from './panel.js';
import { exports } from './exports.js';
import { checksOf, known, total } from './history.js';
import { count, duration, percent, plain, policyQuota, rate } from './format.js';

const WIDTH = 120;
const HEIGHT = 22;
/** Rows that are shown of many, before all are asked for: the panels below stay near. */
const FIRST = 6;
const FEW = 8;

/** How two policies are ordered, by the sums of the chosen range. */
const ORDERS = {
  denied: (a, b, sums) => sums.deny(b) - sums.deny(a),
  allowed: (a, b, sums) => sums.allow(b) - sums.allow(a),
  name: (a, b) => a.name.localeCompare(b.name),
  config: () => 0,
};

export class Policies {
  #panel;
  #hooks;
  #history = null;
  #chosen = '';
  #form = byId('policies-form');
  #showsAll = false;
  all = [];
  /** Whether the counts may lack those of other instances. */
  #isPartial = false;

  constructor(hooks) {
    this.#hooks = hooks;
    this.#panel = new Panel('policies', 'Policies', hooks);
    exports(byId('policies'), 'policies', () => this.all.map((policy) => this.#exported(policy)));
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    this.#form.addEventListener('input', () => this.#list());
    byId('policies-all').addEventListener('click', () => {
      this.#showsAll = !this.#showsAll;
      this.#list();
    });
  }

  refresh() {
    return this.#panel.load('/v1/policies', ({ policies, fleet_error: error }) => {
      this.#isPartial = Boolean(error);
      this.#draw(policies);
    });
  }

  /** Whether no policy has decided anything yet. */
  isIdle() {
    return !this.#isPartial && this.all.every(({ counts }) => counts && counts.allowed + counts.denied + counts.shadow_denied === 0);
  }

  /** Shows the figures of the chosen range. */
  drawHistory(history) {
    this.#history = history;
    setText(byId('policies-range'), `Last ${duration(spanMs(history))}`);
    this.#list();
  }

  /** The policies of the filter in the chosen order. */
  #ordered() {
    const { filter, order } = this.#form.elements;
    const sumBy = (wanted) => {
      const sums = new Map();
      for (const { policy, verdict, counts } of this.#history?.decisions ?? []) {
        if (verdict === wanted) sums.set(policy, (sums.get(policy) ?? 0) + total(known(this.#history, counts)));
      }
      return ({ name }) => sums.get(name) ?? 0;
    };
    const sums = { deny: sumBy('deny'), allow: sumBy('allow') };
    const text = filter.value.trim().toLowerCase();
    const found = this.all.filter(({ name }) => name.toLowerCase().includes(text));
    return found.sort((a, b) => ORDERS[order.value](a, b, sums));
  }

  /** Shows the first policies, or all, and always the chosen one. */
  #list() {
    const found = this.#ordered();
    const isLong = found.length > FEW;
    const shown = found.filter(({ name }, at) => !isLong || this.#showsAll || at < FIRST || name === this.#chosen);
    const button = byId('policies-all');
    show(button, isLong);
    setText(button, this.#showsAll ? `Show the first ${FIRST}` : `Show all ${count(found.length)}`);
    list(byId('policies-rows'), shown, ({ name }) => name, (policy) => this.#row(policy));
  }

  #figures(name) {
    const history = this.#history;
    const of = (verdict) => known(history, checksOf(history, (one) => one.policy === name && one.verdict === verdict));
    const [allowed, denied, shadow] = ['allow', 'deny', 'shadow_deny'].map(of);
    return { allowed, denied, shadow };
  }

  /** What the current limit has done in the chosen range; empty if nothing was decided. */
  #recentText({ name, mode }) {
    const [allowed, denied, shadow] = Object.values(this.#figures(name)).map(total);
    const who = this.#history?.instances > 1 ? 'all instances' : 'this instance';
    const checks = allowed + denied + shadow;
    const would = mode === 'shadow' ? 'would have denied' : 'denied';
    return checks && `In the last ${duration(spanMs(this.#history))} ${who} ${would} ${count(denied + shadow)} of ${count(checks)} checks.`;
  }

  #exported(policy) {
    const { name, scope, limit, window_ms: windowMs, algorithm, mode, open_reservations: open, held_cost: held } = policy;
    const row = { name, scope: scope.join(' '), limit, window_ms: windowMs, algorithm, mode, open_reservations: open, held };
    if (!this.#history) return row;
    const { allowed, denied, shadow } = this.#figures(name);
    const sums = { allowed: total(allowed), denied: total(denied), shadow_denied: total(shadow) };
    return { ...row, ...sums, range_ms: spanMs(this.#history) };
  }

  #draw(policies) {
    const isFirst = this.all.length === 0;
    this.all = policies;
    const names = policies.map(({ name }) => [name, name]);
    options(byId('top-policy'), [['', 'All'], ...names]);
    options(byId('denials-policy'), [['', 'All'], ...names]);
    options(byId('key-policy'), names);
    this.#list();
    this.#hooks.policiesChanged(policies);
    // The URL may have chosen a policy before they were loaded.
    if (isFirst && this.#chosen) this.#hooks.policyChosen(this.#chosen);
  }

  /** Chooses a policy, or all with an empty name. */
  choose(name) {
    if (name === this.#chosen) return;
    this.#chosen = name;
    this.#list();
    for (const button of byId('policies-rows').querySelectorAll('button.link')) {
      button.setAttribute('aria-pressed', String(button.textContent === name));
    }
    this.#hooks.policyChosen(name);
  }

  #edit(name) {
    const policy = this.all.find((policy) => policy.name === name);
    this.#hooks.editLimit(policy, this.#history && this.#recentText(policy));
  }

  #row({ name }) {
    const button = el(
      'button',
      { type: 'button', class: 'link', 'aria-pressed': String(this.#chosen === name), onclick: () => this.#hooks.link(this.#chosen === name ? '' : `policy/${encodeURIComponent(name)}`) },
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
    const [allowed, denied, shadow] = [0, 1, 2].map(() => el('td', { class: 'n' }));
    shadow.classList.add('wide');
    const bar = el('i', { class: 'bar', 'aria-hidden': 'true' });
    const share = el('span');
    const draw = sparkline(spark);
    const figures = () => {
      if (!this.#history) return;
      const of = this.#figures(name);
      draw(of);
      const ms = spanMs(this.#history);
      const sums = [total(of.allowed), total(of.denied), total(of.shadow)];
      [allowed, denied, shadow].forEach((cell, at) => {
        setText(cell, rate((1000 * sums[at]) / ms));
        cell.title = `${count(sums[at])} in ${duration(ms)}`;
      });
      const decided = sums[0] + sums[1];
      setText(share, percent(sums[1], decided));
      bar.style.setProperty('--part', decided ? sums[1] / decided : 0);
    };
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
        shadow,
      ),
      update: (policy) => {
        figures();
        const isShadow = policy.mode === 'shadow';
        const text = policyQuota(policy);
        setText(
          marks,
          [
            isShadow && 'shadow',
            policy.limit === 0 && !policy.tiers && !isShadow && 'denies everything',
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
        show(marks, marks.textContent !== '');
        show(under, under.textContent !== '');
      },
    };
  }
}

/** The time that the history knows, at least a second. */
const spanMs = (history) => Math.max(1000, total(known(history, history.lasted_ms)));

function scopeText({ scope, when }) {
  const conditions = Array.isArray(when) ? when : [];
  return [
    scope.length ? `per ${scope.join(' and ')}` : 'all requests share one key',
    conditions.length && `when ${plain(conditions.join(' and '))}`,
  ]
    .filter(Boolean)
    .join(', ');
}

/** What reservations of this instance hold. */
function openText({ open_reservations: open, held_cost: held }) {
  return open > 0 && `${count(open)} open reservation${open === 1 ? '' : 's'} of ${count(held)}`;
}

/** Allowed as an area, denied as a line, as wide as the column. Returns the draw function. */
function sparkline(container) {
  const allowed = svg('path', { class: 'allowed' });
  const denied = svg('path', { class: 'denied' });
  const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' };
  const drawing = svg('svg', box, allowed, denied);
  container.append(drawing);
  return (of) => {
    const steps = of.allowed.length;
    const most = Math.max(1, ...of.allowed, ...of.denied);
    const x = (at) => ((WIDTH * at) / Math.max(1, steps - 1)).toFixed(1);
    const y = (n) => (HEIGHT - 2 - ((HEIGHT - 4) * n) / most).toFixed(1);
    // Steps that are not known are gaps.
    const begins = (values, at) => at === 0 || values[at - 1] === null;
    const line = (values) =>
      values.map((n, at) => (n === null ? '' : `${begins(values, at) ? 'M' : 'L'}${x(at)} ${y(n)}`)).join('');
    const area = (values) =>
      values
        .map((n, at) => {
          if (n === null) return '';
          const start = begins(values, at) ? `M${x(at)} ${HEIGHT}` : '';
          const end = at + 1 === steps || values[at + 1] === null ? `L${x(at)} ${HEIGHT}Z` : '';
          return `${start}L${x(at)} ${y(n)}${end}`;
        })
        .join('');
    const sums = [total(of.allowed), total(of.denied)];
    allowed.setAttribute('d', area(of.allowed));
    denied.setAttribute('d', sums[1] ? line(of.denied) : '');
    drawing.setAttribute('aria-label', `${count(sums[0])} allowed and ${count(sums[1])} denied in the range`);
  };
}
