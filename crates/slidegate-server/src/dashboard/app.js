// The page: what is asked when, and what one part tells the others.
//
// The stream says every second how many were decided; everything else is asked again now and then, while the page can
// be seen.

import { byId, say, show } from './dom.js';
import { Refusal, live } from './api.js';
import { sentence } from './panel.js';
import { duration, time } from './format.js';
import { TokenDialog } from './token.js';
import { Rates } from './rates.js';
import { Policies } from './policies.js';
import { Top } from './top.js';
import { Denials } from './denials.js';
import { Key } from './key.js';
import { Limit } from './limit.js';
import { Shadow } from './shadow.js';
import { Status } from './status.js';

const OFTEN_MS = 2000;
const SELDOM_MS = 5000;

const hooks = {
  tokenWanted: (refusal) => dialog.ask(refusal),
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
const limit = new Limit(hooks);
const shadow = new Shadow(hooks);
const status = new Status(hooks);
const dialog = new TokenDialog(() => {
  refreshAll();
  stream.retry();
});

async function refreshAll() {
  await Promise.all([policies.refresh(), status.refresh(), shadow.refresh(), denials.refresh(), keys.refresh()]);
  if (mayOnlyRead) readOnly(mayOnlyRead);
}

/** Why changes are refused, once one was. */
let mayOnlyRead = null;

/** A token that may only read: what would be refused cannot be pressed, and says why. */
function readOnly(refusal) {
  mayOnlyRead = refusal;
  for (const button of document.querySelectorAll('.key-acts button, button.write')) {
    button.disabled = true;
    button.title = refusal.message;
  }
}

// --- the connection ---------------------------------------------------------------------------------------------

let lastHeard = null;
let countdown;

function connection(state, text) {
  const badge = byId('connection');
  badge.dataset.state = state;
  say(badge, text);
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
    lastHeard = new Date();
    if (name === 'rates') {
      rates.add(data);
      policies.addRates(data.by_policy);
      status.storeIs(data.store_degraded);
      denials.draw();
      if (data.allowed + data.denied + data.shadow_denied > 0) show(byId('first'), false);
    } else if (name === 'denial') {
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
    if (error instanceof Refusal && error.status === 401) dialog.ask(error);
    const since = lastHeard ? ` The figures below are of ${time(lastHeard)}.` : '';
    say(byId('banner-text'), `${sentence(error, 'Live figures')}${/[.!?]$/.test(error.message) ? '' : '.'}${since}`);
    show(byId('banner'), true);
    clearInterval(countdown);
    const until = Date.now() + pauseMs;
    const tell = () => say(byId('try-now'), `Try now (${duration(Math.max(1000, until - Date.now()))})`);
    tell();
    countdown = setInterval(tell, 1000);
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
  say(byId('first-command'), `curl -i '${location.origin}/v1/check${query && `?${query}`}'`);
}

/** For a URL within single quotes of a shell. */
const quoted = (text) => encodeURIComponent(text).replaceAll("'", '%27');

// A page that does not come over TLS or from loopback has no clipboard.
show(byId('first-copy'), Boolean(navigator.clipboard));
byId('first-copy').addEventListener('click', async (event) => {
  await navigator.clipboard.writeText(byId('first-command').textContent);
  say(event.target, 'Copied');
});

// --- now and then -----------------------------------------------------------------------------------------------

const isWorthIt = () => document.visibilityState === 'visible' && byId('connection').dataset.state === 'live';

setInterval(() => isWorthIt() && keys.refresh(), OFTEN_MS);
setInterval(() => {
  if (!isWorthIt()) return;
  policies.refresh();
  status.refresh();
  shadow.refresh();
}, SELDOM_MS);

keys.openFromAddress();
