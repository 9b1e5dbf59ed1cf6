// Status panel: store, memory, config, listeners and run-time changes.

import { byId, el, fact, list, setText, show } from './dom.js';
import { HttpError, request } from './api.js';
import { Panel, errorText } from './panel.js';
import { ago, count, duration, percent, plain, rate, time } from './format.js';

export class Status {
  #panel;

  constructor(hooks) {
    this.hooks = hooks;
    this.#panel = new Panel('status', 'Status', hooks);
  }

  async refresh() {
    await this.#panel.load('/v1/status', (status) => this.#draw(status));
    await this.#refreshChanges();
  }

  #draw(status) {
    this.hooks.statusChanged(status);
    const { version, started_at: startedAt, uptime_ms: uptime, listeners, config, store, fleet, memory, traces, changes, waiting } = status;
    setText(byId('version'), version);
    const redis = store.kind !== 'memory';
    const facts = [
      ['Store', storeText(store)],
      ...(store.nodes ?? []).map((node) => [
        node.node,
        `${node.connected ? 'connected' : 'not connected'}, breaker ${node.breaker}, ${count(node.timeouts)} timeouts`,
      ]),
      ...(redis
        ? [
            ['Instances', store.instances ? count(store.instances) : 'not counted yet', !store.instances],
            ['Fallback decisions', count(store.fallbacks ?? 0)],
            ...Object.entries(store.leases ?? {}).map(([policy, lease]) => [`Leases of ${policy}`, leaseText(lease)]),
          ]
        : []),
      ...(fleet ? [['Fleet', fleetText(fleet), Boolean(fleet.error)]] : []),
      [
        'Keys in memory',
        `${count(memory.keys)} of ${count(memory.max_keys)} (${percent(memory.keys, memory.max_keys)})`,
      ],
      [
        'Keys dropped',
        memory.dropped ? `${count(memory.dropped)}: raise store.memory.max_keys` : 'none',
        memory.dropped > 0,
      ],
      ...waitFact(waiting),
      ['Config', config.source ?? 'none'],
      ...(config.hash ? [['Config hash', String(config.hash).slice(0, 12)]] : []),
      [
        'Loaded',
        `${time(config.loaded_at)}, ${config.reloads === 1 ? '1 reload' : `${count(config.reloads ?? 0)} reloads`}`,
      ],
      ...(config.error && !config.rejected ? [['Needs a restart', config.error, true]] : []),
      ...(traces ? [['Spans', spanText(traces), traces.failed + traces.dropped > 0]] : []),
      ...(changes.error ? [['Changes', `not synchronized with the store: ${changes.error}`, true]] : []),
      ...(changes.last_loss ? [['Changes lost by the store', lossText(changes), !changes.last_loss.restored_at]] : []),
      ...changes.refused.map((why, at) => [at ? `Rejected change (${at + 1})` : 'Rejected change', why, true]),
      ['Uptime', `${duration(Math.floor(uptime / 1000) * 1000)}, since ${time(startedAt)}`],
      [
        'Listening',
        listeners.map(({ protocol, address, tls }) => `${protocol} ${address}${tls ? ' (TLS)' : ''}`).join('\n'),
      ],
    ];
    list(
      byId('status-facts'),
      facts,
      ([name]) => name,
      ([name]) => {
        const node = fact(name, '');
        return {
          node,
          update: ([, value, isBad]) => {
            setText(node.lastChild, plain(value));
            node.classList.toggle('bad', Boolean(isBad));
          },
        };
      },
    );
  }

  async #refreshChanges() {
    let changes;
    try {
      const { changes: ofPolicies, keys } = await request('/v1/changes');
      changes = [...ofPolicies, ...keys].sort((one, other) => other.at.localeCompare(one.at));
    } catch (error) {
      errorText(error, 'Changes'); // rethrows bugs of this page
      changes = [];
    }
    show(byId('changes'), changes.length > 0);
    setText(byId('changes-count'), count(changes.length));
    list(
      byId('changes-list'),
      changes,
      ({ id, at, key }) => id ?? `${at} ${key}`,
      (change) => {
        const text = el('span');
        const undo = el(
          'button',
          { type: 'button', class: 'quiet write', onclick: () => this.#undo(change.id, undo) },
          'Undo',
        );
        return {
          node: el('li', {}, text, ' ', undo),
          update: (now) => {
            setText(text, plain(changeText(now)));
            show(undo, Boolean(now.id) && !now.undone_by && now.what !== 'undo');
          },
        };
      },
    );
  }

  async #undo(id, button) {
    button.disabled = true;
    try {
      await request(`/v1/changes/${encodeURIComponent(id)}/undo`, { method: 'POST', body: {} });
      this.hooks.changed();
    } catch (error) {
      if (error instanceof HttpError && error.status === 403) this.hooks.readOnly();
      this.#panel.note(errorText(error, 'Undo'));
      button.disabled = false;
    }
  }
}

function storeText({ kind, url, refuses_decisions: refuses, degraded }) {
  if (kind === 'memory') return 'in-process memory';
  const state = degraded ? 'unavailable' : 'healthy';
  return `${kind} ${url ?? ''}, ${refuses ? 'limits are not shared' : state}`;
}

/** What is held of the limits, and what needed no call. */
function leaseText({ open, held_share: held, admitted, expired }) {
  const text = `${count(open)} open, ${percent(held, 1)} held, ${count(admitted)} requests admitted`;
  return expired ? `${text}, ${count(expired)} ended unsettled` : text;
}

/** Calls that wait for their turn, if any has. */
function waitFact({ now, oldest_ms: oldest, turns, late, full, gone, p50_ms: p50, p99_ms: p99 }) {
  if (!(now + turns + late + full + gone)) return [];
  const lines = [
    now ? `${count(now)} now, the oldest for ${duration(oldest)}` : 'none now',
    `${count(turns)} admitted${p99 ? `, half within ${duration(p50)}, 99 of 100 within ${duration(p99)}` : ''}`,
    `${count(late)} without a turn in time, ${count(gone)} given up`,
    full && `${count(full)} refused: as many waited as may`,
  ];
  return [['Waiting for a turn', lines.filter(Boolean).join('\n'), full > 0]];
}

/** The sum of all instances, then one line for each. */
function fleetText({ instances, error, alone_since: since, ...all }) {
  const waits = (one) => (one.waiting ? `, ${count(one.waiting)} waiting` : '');
  const rates = (one) => `${rate(one.allowed_per_s)} allowed, ${rate(one.denied_per_s)} denied${waits(one)}`;
  const line = (one) => `${one.name}${one.this ? ' (this)' : ''}: ${rates(one)}${one.degraded ? ', store unavailable' : ''}`;
  const lines = [`${count(instances.length)} instance${instances.length === 1 ? '' : 's'}: ${rates(all)}`, ...instances.map(line)];
  return [...lines, error && `others are unknown since ${time(since)}: ${error}`].filter(Boolean).join('\n');
}

/** Exported and lost spans. */
function spanText({ endpoint, sent, failed, dropped }) {
  const lost = failed + dropped;
  return `${count(sent)} sent to ${endpoint}, ${lost ? `${count(lost)} lost` : 'none lost'}`;
}

/** Run-time changes that the store lost. */
function lossText({ losses, last_loss: { at, found, restored_at: restoredAt } }) {
  const now = restoredAt ? `written back ${ago(restoredAt)}` : 'still active, not yet written back';
  return `${count(losses)}, last ${ago(at)} (${found}): ${now}`;
}

/** One change of a policy, or of a key. */
function changeText({ what, policy, key, words, by, at, undoes, undone_by: undoneBy }) {
  const did = undoes ? `${what} of ${undoes}` : what;
  return `${did}: ${policy}${key ? ` ${key}:` : ''} ${words}, by ${by}, ${ago(at)}${undoneBy ? `, undone by ${undoneBy}` : ''}`;
}
