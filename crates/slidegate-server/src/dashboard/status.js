// How the service itself is: its store, its memory, its configuration, and what was changed at run time.

import { byId, el, fact, list, say, show } from './dom.js';
import { Refusal, ask } from './api.js';
import { Panel, sentence } from './panel.js';
import { ago, count, duration, percent, time } from './format.js';

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

  #draw({ version, started_at: startedAt, uptime_ms: uptime, listeners, config, store, memory, traces, changes }) {
    say(byId('version'), version);
    const redis = store.kind !== 'memory';
    const facts = [
      ['Store', storeWords(store)],
      ...(store.nodes ?? []).map((node) => [
        node.node,
        `${node.connected ? 'connected' : 'not connected'}, breaker ${node.breaker}, ${count(node.timeouts)} time-outs`,
      ]),
      ...(redis ? [['By fallback', count(store.fallbacks ?? 0)]] : []),
      [
        'Keys in memory',
        `${count(memory.keys)} of ${count(memory.max_keys)} (${percent(memory.keys, memory.max_keys)})`,
      ],
      [
        'Keys dropped',
        memory.dropped ? `${count(memory.dropped)}: raise store.memory.max_keys` : 'none',
        memory.dropped > 0,
      ],
      ['Configuration', config.source ?? 'none'],
      ...(config.hash ? [['Its hash', String(config.hash).slice(0, 12)]] : []),
      [
        'Taken over',
        `${time(config.loaded_at)}, ${config.reloads === 1 ? '1 reload' : `${count(config.reloads ?? 0)} reloads`}`,
      ],
      ...(traces ? [['Spans', spanWords(traces), traces.failed + traces.dropped > 0]] : []),
      ...(changes.error ? [['Changes', `not synchronized with the store: ${changes.error}`, true]] : []),
      ...(changes.last_loss ? [['Changes lost by the store', lossWords(changes), !changes.last_loss.restored_at]] : []),
      ...changes.refused.map((why, at) => [at ? `Not in force (${at + 1})` : 'Not in force', why, true]),
      ['Up', `${duration(Math.floor(uptime / 1000) * 1000)}, since ${time(startedAt)}`],
      [
        'Listening',
        listeners.map(({ door, address, tls }) => `${door} ${address}${tls ? ' (TLS)' : ''}`).join('\n'),
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
            say(node.lastChild, value);
            node.classList.toggle('bad', Boolean(isBad));
          },
        };
      },
    );
    show(byId('config-error'), Boolean(config.error));
    say(byId('config-error-text'), config.error ?? '');
    this.storeIs(store.degraded, store.last_failure);
  }

  /** Also told by the stream, every second. */
  storeIs(isDegraded, failure) {
    show(byId('store-error'), Boolean(isDegraded));
    if (failure) say(byId('store-error-text'), failure);
  }

  async #refreshChanges() {
    let changes;
    try {
      ({ changes } = await ask('/v1/changes'));
    } catch (error) {
      sentence(error, 'Changes'); // a mistake of this page is not swallowed
      changes = [];
    }
    show(byId('changes'), changes.length > 0);
    say(byId('changes-count'), count(changes.length));
    list(
      byId('changes-list'),
      changes,
      ({ id }) => id,
      (change) => {
        const text = el('span');
        const undo = el(
          'button',
          { type: 'button', class: 'quiet', onclick: () => this.#undo(change.id, undo) },
          'Undo',
        );
        return {
          node: el('li', {}, text, ' ', undo),
          update: (now) => {
            say(text, changeWords(now));
            show(undo, !now.undone_by && now.what !== 'undo');
          },
        };
      },
    );
  }

  async #undo(id, button) {
    button.disabled = true;
    try {
      await ask(`/v1/changes/${encodeURIComponent(id)}/undo`, { method: 'POST', body: {} });
      this.hooks.changed();
    } catch (error) {
      if (error instanceof Refusal && error.status === 403) this.hooks.readOnly(error);
      this.#panel.note(sentence(error, 'Undo'));
      button.disabled = false;
    }
  }
}

function storeWords({ kind, url, degraded }) {
  if (kind === 'memory') return 'memory of this process';
  return `${kind} ${url ?? ''}, ${degraded ? 'not answering' : 'well'}`;
}

/** What became of spans of decisions. */
function spanWords({ endpoint, sent, failed, dropped }) {
  const lost = failed + dropped;
  return `${count(sent)} sent to ${endpoint}, ${lost ? `${count(lost)} lost` : 'none lost'}`;
}

/** What became of run-time changes that the store lost. */
function lossWords({ losses, last_loss: { at, found, restored_at: restoredAt } }) {
  const now = restoredAt ? `written back ${ago(restoredAt)}` : 'still in force, not yet written back';
  return `${count(losses)}, last ${ago(at)} (${found}): ${now}`;
}

/** What somebody did to a policy. */
function changeWords({ what, policy, words, by, at, undoes, undone_by: undoneBy }) {
  const did = undoes ? `${what} of ${undoes}` : what;
  return `${did}: ${policy} ${words}, by ${by}, ${ago(at)}${undoneBy ? `, undone by ${undoneBy}` : ''}`;
}
