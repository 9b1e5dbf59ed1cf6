// Alarms: what an operator must know first, at the top of the page at every width.
//
// Each says what happened, what to do, and where its runbook is. A new alarm is an entry of the list.

import { byId, el, list, setText, show } from './dom.js';
import { compact, count, duration, percent, plain, time } from './format.js';
import { total } from './history.js';

const ALARMS = [
  {
    name: 'SlidegateConfigRefused',
    title: 'Config rejected',
    text: ({ status: { config } }) => config.rejected && config.error,
    todo: 'The running config stays active. Correct the file: it is loaded again within a second.',
  },
  {
    name: 'SlidegateStoreNotShared',
    section: 'SlidegateStoreDegraded',
    title: 'Limits are not shared',
    text: ({ status: { store } }) => store.degraded && store.refuses_decisions && store.not_shared,
    todo:
      'The store answers and refuses what decisions need, so each instance counts alone, by the fallback of each ' +
      'policy. Give its user what is missing.',
  },
  {
    name: 'SlidegateStoreDegraded',
    title: 'Store unavailable',
    text: ({ status: { store } }) =>
      store.degraded && !store.refuses_decisions && (store.not_shared ?? store.last_failure ?? 'It does not reply.'),
    todo:
      'Each policy uses its fallback. Check process, memory, network, user and password of the store. ' +
      'The service recovers by itself; a restart does not help.',
  },
  {
    name: 'SlidegateStoreUsageLost',
    title: 'Usage lost by the store',
    text: ({ status: { store: { usage_lost: lost } } }) =>
      lost &&
      `Found at ${time(lost.at)}. Keys of ${lost.policy} (per ${lost.window}) may be admitted once more until ${time(lost.until)}.`,
    todo: 'Redis was emptied, failed over or restarted without an append-only file, or evicted keys. Usage does not come back.',
  },
  {
    name: 'SlidegateInstancesDegraded',
    section: 'SlidegateStoreDegraded',
    title: 'Instances decide alone',
    // While this one does, that is the alarm.
    text: ({ status: { store, fleet } }) =>
      !store.degraded && fleet?.degraded > 0 && `${names(fleet, ({ degraded }) => degraded)}: limits are not shared there.`,
    todo: 'They use the fallback of each policy. Check their network, user and password of the store.',
  },
  {
    name: 'SlidegateInstancesDiffer',
    title: 'Instances differ',
    // While the store is away, it is not known whether they still do.
    text: ({ status: { store, fleet } }) => !store.degraded && fleet?.differ && differText(fleet.differ),
    todo: 'Expected for some minutes while a rollout replaces them. Otherwise give all the same version, config file and time zone data.',
  },
  {
    name: 'SlidegateFloodingKey',
    title: 'One key floods',
    text: ({ status: { policies } }) => policies.flooding_keys.map(floodText).join(' '),
    link: ({ status: { policies } }) => policies.flooding_keys[0],
    todo: 'An attack or a broken client. Block the key, or talk to its owner.',
  },
  {
    name: 'SlidegateManyDenials',
    title: 'Most is denied',
    // If it is one key, that is the alarm.
    text: ({ status: { policies: { many_denials: all, flooding_keys: keys } } }) =>
      all.filter(({ policy }) => !keys.some((one) => one.policy === policy)).map(deniedText).join(' '),
    todo: 'If the limit is too low, try a higher one as a candidate.',
  },
  {
    name: 'SlidegatePolicyLimitsNothing',
    title: 'A policy limits nothing',
    text: ({ status: { policies: { limiting_nothing: names } } }) =>
      names.length > 0 && `${names.join(', ')}: all requests lack an attribute of the scope, so they are admitted.`,
    todo: 'Correct the attribute in the caller, the proxy or the policy.',
  },
  {
    name: 'SlidegateNotificationsLost',
    title: 'Notifications lost',
    text: ({ status, history }) => {
      const lost = recent(status.undelivered, 'undelivered', status, history);
      return lost > 0 && `${count(lost)} not reported, or not taken by the webhook.`;
    },
    todo: 'Check the receiver of the webhook and the store. What is lost is not sent again.',
  },
  {
    name: 'SlidegateKeysDropped',
    title: 'Keys dropped',
    text: ({ status, history }) => {
      const dropped = recent(status.memory.dropped, 'dropped_keys', status, history);
      return dropped > 0 && `${count(dropped)} keys were evicted from a full memory store while they counted.`;
    },
    todo: 'They may be denied too long, and new keys with them. Raise the maximum of keys or bytes of the memory store.',
  },
  {
    name: 'SlidegateManyReservations',
    title: 'Store full of reservations',
    text: ({ status: { memory } }) =>
      2 * memory.holds >= memory.max_holds &&
      `${compact(memory.holds)} of ${compact(memory.max_holds)} (${percent(memory.holds, memory.max_holds)}) are open.`,
    todo: 'Each policy and key only gets a share now. Find who reserves and never settles, in the list of most used keys.',
  },
  {
    name: 'SlidegateChangesLost',
    title: 'Run-time changes lost by the store',
    text: ({ status: { changes } }) =>
      changes.last_loss && !changes.last_loss.restored_at && `At ${time(changes.last_loss.at)}: ${changes.last_loss.found}.`,
    todo: 'They are still active here. Do not restart the last instance that has them.',
  },
  {
    name: 'SlidegateChangesNotStored',
    title: 'Run-time changes are not stored',
    // While the store is unavailable, that is the alarm.
    text: ({ status: { store, changes } }) => !store.degraded && changes.error,
    todo: 'An instance that starts now does not have them. Repair the store; they are written back.',
  },
];

const names = ({ instances }, matches) => instances.filter(matches).map(({ name }) => name).join(', ');

/** How much a count since the start has grown in the range of the history, which has it as `name`. */
function recent(now, name, status, history) {
  if (!history) return 0;
  // Before the first step nothing was counted, if it is the first of the service.
  const isWhole = total(history.lasted_ms) + history.step_ms > status.uptime_ms;
  return now - (isWhole ? 0 : history[name][0]);
}

const floodText = ({ policy, key, denied, of }) =>
  `${key} has ${percent(denied, of)} of the ${count(of)} denials of ${policy} in 10 minutes.`;

const deniedText = ({ policy, denied, checks }) =>
  `${policy} denied ${denied === checks ? 'everything' : percent(denied, checks)}: ${count(denied)} of ${count(checks)} checks in 5 minutes.`;

/** What differs, and for how long. */
function differText({ for_ms: ms, versions, configs, time_zones: zones }) {
  const kinds = [
    ['versions', versions],
    ['configs', configs],
    ['versions of time zone data', zones],
  ];
  const differing = kinds.filter(([, all]) => all.length > 1).map(([what, all]) => `${all.length} ${what} (${all.join(', ')})`);
  return `For ${duration(ms)}: ${differing.join('; ') || 'instances that were seen before'}.`;
}

const OFF = '/dashboard/icon.svg';
const ON = '/dashboard/icon_alarm.svg';

export class Alarms {
  #status = null;
  #history = null;
  #isLost = false;
  #refresh;

  /** `refresh()` loads the status again. */
  constructor(refresh) {
    this.#refresh = refresh;
  }

  setStatus(status) {
    this.#status = status;
    this.#draw();
  }

  setHistory(history) {
    this.#history = history;
    this.#draw();
  }

  /** Called by the stream, every second. */
  setDegraded(isDegraded) {
    if (this.#status && Boolean(this.#status.store.degraded) !== isDegraded) this.#refresh();
  }

  /** Whether the service is unreachable, which the page says elsewhere. */
  setLost(isLost) {
    this.#isLost = isLost;
    this.#draw();
  }

  #draw() {
    if (!this.#status) {
      this.#title([]);
      return;
    }
    const known = { status: this.#status, history: this.#history };
    const active = ALARMS.map((alarm) => ({ ...alarm, said: alarm.text(known) })).filter(({ said }) => said);
    show(byId('alarms'), active.length > 0);
    document.documentElement.toggleAttribute('data-alarm', active.length > 0);
    list(
      byId('alarms-list'),
      active,
      ({ name }) => name,
      ({ name, title, todo, section = name }) => {
        const text = el('p');
        const open = el('a', {}, 'Open the key');
        const runbook = el(
          'a',
          { href: `/dashboard/runbooks.md#:~:text=%23%23%20${section}`, target: '_blank', rel: 'noreferrer' },
          `Runbook: ${section}`,
        );
        return {
          node: el('li', { id: `alarm-${name}` }, el('h3', {}, title), text, el('p', { class: 'hint' }, `${todo} `, runbook, ' ', open)),
          update: ({ said, link }) => {
            setText(text, plain(said));
            const key = link?.(known);
            show(open, Boolean(key));
            if (key) open.href = `#key/${encodeURIComponent(key.policy)}/${encodeURIComponent(key.key)}`;
          },
        };
      },
    );
    this.#title(active);
  }

  #title(active) {
    const said = this.#isLost ? 'disconnected' : active.map(({ title }) => title).join(', ');
    const title = said ? `${said} · slidegate` : 'slidegate';
    if (document.title !== title) document.title = title;
    const icon = said ? ON : OFF;
    if (byId('icon').getAttribute('href') !== icon) byId('icon').setAttribute('href', icon);
  }
}
