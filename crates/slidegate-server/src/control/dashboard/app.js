// Entry point: polling, the live stream, and events between panels.
//
// The stream sends the decision rates every second. Everything else is polled while the page is
// visible.

import { byId, setText, show } from './dom.js';
import { HttpError, live } from './api.js';
import { errorText } from './panel.js';
import { duration, time } from './format.js';
import { TokenDialog } from './token_dialog.js';
import { Alarms } from './alarms.js';
import { History, total } from './history.js';
import { Rates } from './rates.js';
import { Policies } from './policies.js';
import { Top } from './top.js';
import { Denials } from './denials.js';
import { Key } from './key.js';
import { LimitDialog } from './limit_dialog.js';
import { Shadow } from './shadow.js';
import { Status } from './status.js';

const KEY_POLL_MS = 2000;
const POLL_MS = 5000;

const hooks = {
  tokenRequired: (error) => dialog.open(error),
  readOnly,
  editLimit: (policy, recent) => limit.edit(policy, recent),
  openKey: (policy, key) => keys.open(policy, key),
  link,
  policyChosen: (policy) => {
    rates.choose(policy);
    top.choose(policy);
    denials.choose(policy);
  },
  policiesChanged: (all) => {
    keys.policiesChanged(all);
    rates.policiesChanged(all);
    denials.policiesChanged(all);
    firstSteps();
    top.policiesChanged(all);
  },
  changed: () => refreshAll(),
  keyLoaded: (isLoaded) => hasOneKey && connection(...(isLoaded ? ['live', 'Live'] : ['lost', 'Disconnected'])),
  statusChanged: (now) => {
    alarms.setStatus(now);
    top.fleetChanged(now.fleet);
    rates.fleetChanged(now.fleet, Date.parse(now.started_at) + now.uptime_ms);
    document.documentElement.dataset.access = now.may_write === false ? 'read' : 'write';
  },
};

const alarms = new Alarms(() => status.refresh());
const rates = new Rates((at) => link(at === null ? '' : `at/${new Date(at).toISOString()}`));
const policies = new Policies(hooks);
const history = new History(hooks, (last) => {
  rates.draw(last);
  policies.drawHistory(last);
  alarms.setHistory(last);
  top.denialsKnown(total(last.denied) > 0);
});
const top = new Top(hooks);
const denials = new Denials(hooks);
const keys = new Key(hooks);
const limit = new LimitDialog(hooks);
const shadow = new Shadow(hooks);
const status = new Status(hooks);
const dialog = new TokenDialog(() => {
  if (hasOneKey) location.reload();
  refreshAll();
  stream.retry();
});

async function refreshAll() {
  await Promise.all([history.refresh(), policies.refresh(), status.refresh(), shadow.refresh(), denials.refresh(), keys.refresh()]);
}

/** Removes the buttons of changes, for a token that may only read. */
function readOnly() {
  document.documentElement.dataset.access = 'read';
}

// --- a token of one key ------------------------------------------------------------------------------------------

/** Whether the token may only read one key. */
let hasOneKey = false;

/** Shows this key, `POLICY/KEY`, and nothing else. */
function showOnly(ownKey) {
  const [, policy, key] = /^([^/]+)\/(.+)$/s.exec(ownKey);
  hasOneKey = true;
  document.documentElement.dataset.access = 'key';
  show(byId('banner'), false);
  keys.open(policy, key);
}

// --- the connection ---------------------------------------------------------------------------------------------

let lastEventAt = null;
let countdown;

function connection(state, text) {
  const badge = byId('connection');
  badge.dataset.state = state;
  setText(badge, text);
  document.documentElement.dataset.connection = state;
  alarms.setLost(state === 'lost');
}

const stream = live({
  open() {
    clearInterval(countdown);
    show(byId('banner'), false);
    connection('live', 'Live');
    refreshAll();
  },
  event(name, data) {
    lastEventAt = new Date();
    if (name === 'rates') {
      rates.add(data);
      alarms.setDegraded(data.store_degraded);
      denials.draw();
      if (data.allowed + data.denied + data.shadow_denied > 0) show(byId('first'), false);
    } else if (name === 'denial' || name === 'expired') {
      denials.add(data);
    } else if (name === 'missed') {
      denials.missed(data.messages);
    } else if (name === 'changed') {
      refreshAll();
    }
  },
  lost(error, pauseMs) {
    if (error.ownKey) {
      showOnly(error.ownKey);
      return;
    }
    connection('lost', 'Disconnected');
    if (error instanceof HttpError && error.status === 401) dialog.open(error);
    const at = lastEventAt ?? history.last?.at_ms.at(-1);
    const since = at ? ` The figures below are from ${time(at)}.` : '';
    setText(byId('banner-text'), `${errorText(error, 'Live figures')}${/[.!?]$/.test(error.message) ? '' : '.'}${since}`);
    show(byId('banner'), true);
    clearInterval(countdown);
    const until = Date.now() + pauseMs;
    const update = () => setText(byId('try-now'), `Try now (${duration(Math.max(1000, until - Date.now()))})`);
    update();
    countdown = setInterval(update, 1000);
  },
});

byId('try-now').addEventListener('click', () => {
  dialog.allow();
  stream.retry();
});

// --- the first request ------------------------------------------------------------------------------------------

function firstSteps() {
  const isIdle = policies.isIdle();
  show(byId('first'), isIdle);
  if (!isIdle) return;
  const policy = policies.all.find(({ when }) => !when?.length) ?? policies.all[0];
  const value = (name) => (/(^|_)(ip|address|addr)$/.test(name) ? '192.0.2.7' : 'alice');
  const query = (policy?.scope ?? []).map((name) => `${quoted(name)}=${value(name)}`).join('&');
  setText(byId('first-command'), `curl -i '${location.origin}/v1/check${query && `?${query}`}'`);
}

/** Escapes a URL part for a shell argument in single quotes. */
const quoted = (text) => encodeURIComponent(text).replaceAll("'", '%27');

// The clipboard is only available over TLS or on loopback.
show(byId('first-copy'), Boolean(navigator.clipboard));
byId('first-copy').addEventListener('click', async (event) => {
  await navigator.clipboard.writeText(byId('first-command').textContent);
  setText(event.target, 'Copied');
});

// --- links ---------------------------------------------------------------------------------------------------

/** Shows what a fragment names, and puts it into the address, so that it can be shared. An empty one shows all. */
function link(fragment) {
  const address = fragment ? `#${fragment}` : location.pathname + location.search;
  globalThis.history.replaceState(null, '', address);
  route();
}

/** Follows the fragment of the address: `#at/TIME`, `#policy/NAME` or `#key/POLICY/KEY`. */
function route() {
  const [, what, rest] = /^#(at|policy|key)\/(.+)$/.exec(location.hash) ?? [];
  if (what === 'key') keys.openFromUrl();
  rates.pin(what === 'at' ? timeOf(rest) : null);
  if (what === 'policy' || !location.hash) policies.choose(what ? decodeURIComponent(rest) : '');
}

/** The linked time, in milliseconds; null if it is not one. */
function timeOf(text) {
  const at = Date.parse(text);
  if (Number.isNaN(at)) return null;
  setText(byId('rates-pinned'), history.show(at) ? '' : 'The service keeps an hour; the linked time is older.');
  history.refresh();
  byId('rates').scrollIntoView({ block: 'start' });
  return at;
}

addEventListener('hashchange', route);

// --- polling -----------------------------------------------------------------------------------------------

const isVisible = () => document.visibilityState === 'visible';
const isActive = () => isVisible() && byId('connection').dataset.state === 'live';

setInterval(() => (hasOneKey ? isVisible() : isActive()) && keys.refresh(), KEY_POLL_MS);
setInterval(() => {
  if (!isActive() || hasOneKey) return;
  history.refresh();
  policies.refresh();
  status.refresh();
  shadow.refresh();
  denials.count();
}, POLL_MS);

route();
