// Entry point: polling, the live stream, and events between panels.
//
// The stream sends the decision rates every second. Everything else is polled while the page is
// visible.

import { byId, setText, show } from './dom.js';
import { HttpError, live } from './api.js';
import { errorText } from './panel.js';
import { duration, time } from './format.js';
import { TokenDialog } from './token_dialog.js';
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
  editLimit: (policy) => limit.edit(policy),
  openKey: (policy, key) => keys.open(policy, key),
  policyChosen: (policy) => {
    top.choose(policy);
    denials.choose(policy);
  },
  policiesChanged: (all) => {
    keys.policiesChanged(all);
    firstSteps();
    top.refresh();
  },
  changed: () => refreshAll(),
};

const rates = new Rates();
const policies = new Policies(hooks);
const top = new Top(hooks);
const denials = new Denials(hooks);
const keys = new Key(hooks);
const limit = new LimitDialog(hooks);
const shadow = new Shadow(hooks);
const status = new Status(hooks);
const dialog = new TokenDialog(() => {
  refreshAll();
  stream.retry();
});

async function refreshAll() {
  await Promise.all([policies.refresh(), status.refresh(), shadow.refresh(), denials.refresh(), keys.refresh()]);
  if (readOnlyError) readOnly(readOnlyError);
}

/** The error of the first change rejected with 403. */
let readOnlyError = null;

/** Disables the buttons of changes for a read-only token, with the reason as their title. */
function readOnly(error) {
  readOnlyError = error;
  for (const button of document.querySelectorAll('.key-acts button, button.write')) {
    button.disabled = true;
    button.title = error.message;
  }
}

// --- the connection ---------------------------------------------------------------------------------------------

let lastEventAt = null;
let countdown;

function connection(state, text) {
  const badge = byId('connection');
  badge.dataset.state = state;
  setText(badge, text);
  document.documentElement.dataset.connection = state;
  document.title = state === 'lost' ? 'disconnected · slidegate' : 'slidegate';
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
      policies.addRates(data.by_policy);
      status.setStore(data.store_degraded);
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
    rates.interrupt();
    connection('lost', 'Disconnected');
    if (error instanceof HttpError && error.status === 401) dialog.open(error);
    const since = lastEventAt ? ` The figures below are from ${time(lastEventAt)}.` : '';
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

// --- polling -----------------------------------------------------------------------------------------------

const isActive = () => document.visibilityState === 'visible' && byId('connection').dataset.state === 'live';

setInterval(() => isActive() && keys.refresh(), KEY_POLL_MS);
setInterval(() => {
  if (!isActive()) return;
  policies.refresh();
  status.refresh();
  shadow.refresh();
}, POLL_MS);

keys.openFromUrl();
