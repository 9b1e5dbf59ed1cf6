// Formats numbers and times. Waits round up, as in the service.

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

/** 12,345 */
export const count = (n) => whole.format(n);

/** 12.3K */
export const compact = (n) => (n < 10_000 ? whole.format(n) : short.format(n));

/** 1,234 or 0.25: at most two decimals. */
export const figure = (n) => (n < 10_000 ? Number(n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)).toLocaleString('en') : short.format(n));

/** 12.3/s, or a dash if it is unknown. */
export function rate(n) {
  if (n === null || n === undefined) return '–';
  return n > 0 && n < 0.01 ? '< 0.01/s' : `${figure(n)}/s`;
}

/** 3.1 %, or a dash if the total is 0. */
export function percent(part, of) {
  if (!of) return '–';
  const share = (100 * part) / of;
  if (share > 0 && share < 0.1) return '< 0.1 %';
  return `${share.toFixed(share < 10 && share > 0 ? 1 : 0)} %`;
}

const UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1000],
];

/** 90s as `1m 30s`: at most two units, the last rounded up. */
export function duration(ms) {
  if (ms < 1000) return `${Math.ceil(ms)}ms`;
  let rest = Math.ceil(ms / 1000) * 1000;
  const at = UNITS.findIndex(([, size]) => rest >= size);
  const [, least] = UNITS[Math.min(at + 1, UNITS.length - 1)];
  rest = Math.ceil(rest / least) * least;
  const parts = [];
  for (const [unit, size] of UNITS.slice(at > 0 ? at - 1 : at)) {
    const n = Math.floor(rest / size);
    if (n > 0) parts.push(`${n}${unit}`);
    rest -= n * size;
    if (size === least) break;
  }
  return parts.join(' ');
}

/** `100 / 1m`. */
export const quota = (one) =>
  one.algorithm === 'in-flight' ? `${count(one.limit)} in flight` : `${count(one.limit)} / ${exactWindow(one)}`;

/** `100 / 1m token-bucket, burst 20, by plan: 10 for free`. */
export function policyQuota(policy) {
  const { algorithm, burst, tiers } = policy;
  const tier = ([value, limit]) => `${count(limit)} for ${value}`;
  return [
    algorithm === 'in-flight' ? quota(policy) : `${quota(policy)} ${algorithm}`,
    burst && `burst ${count(burst)}`,
    tiers && `by ${tiers.by}: ${Object.entries(tiers.limits).map(tier).join(', ')}`,
  ]
    .filter(Boolean)
    .join(', ');
}

/** `90s`, not rounded, or `month in Europe/Berlin`. */
export function exactWindow({ window_ms: ms, calendar }) {
  if (calendar) return calendar;
  const [unit, size] = UNITS.find(([, size]) => ms >= size && ms % size === 0) ?? ['ms', 1];
  return `${ms / size}${unit}`;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** 14:03:22 in the local time zone. */
export const time = (at) => clock.format(new Date(at));

/** `3s ago`. */
export function ago(at, now = Date.now()) {
  const ms = now - new Date(at).getTime();
  return ms < 1000 ? 'now' : `${duration(Math.floor(ms / 1000) * 1000)} ago`;
}

/** A text of the service without its backquotes, which mark code. */
export const plain = (text) => text.replaceAll(/`([^`]*)`/g, '“$1”');

/** Who decided, where it was not the store. */
export const decidedBy = ({ source }) =>
  ({ store: '', cached: ', as a cached denial says', leased: ', from a lease of the instance' })[source] ??
  `, decided by the fallback “${source}”`;

/** Whose figures a response has. */
export const whose = ({ instances, fleet_error: error }) =>
  error ? 'Of this instance only: the store does not reply.' : instances > 1 ? `Of ${count(instances)} instances.` : '';

/** Whether this is the internal policy of a candidate, which only the Shadow panel shows. */
export const isCandidate = (policy) => policy.endsWith('.candidate');

/** Identifies an event. `at` distinguishes restarts, after which `seq` starts again. */
export const identity = ({ seq, at }) => `${seq} ${at}`;

/** The reason of a denial, or the outcome of a reservation. Events know no calendar: it is that of `policy`, if known. */
export function why(event, policy) {
  if (event.verdict === 'expired') {
    const charged = event.cost ? `${count(event.cost)} charged` : 'nothing charged';
    return `not settled by ${time(event.until)}: held ${count(event.held)}, ${charged}`;
  }
  const isCalendar = policy?.calendar && policy.window_ms === event.window_ms;
  const most = quota(isCalendar ? { ...event, calendar: policy.calendar } : event);
  const held = event.held ? `, ${count(event.held)} held` : '';
  const used =
    event.algorithm === 'in-flight'
      ? `${count(event.held ?? 0)} of ${most}`
      : `used ${count(event.used)} of ${most}${held}`;
  if (event.reason === 'store_unavailable') return `not counted: ${event.store_failure ?? 'the store is unavailable'}`;
  if (event.reason === 'blocked') {
    const { until, by } = event.block ?? {};
    return `blocked${until ? ` until ${time(until)}` : ''}${by ? ` by ${by}` : ''}; ${used}`;
  }
  if (event.reason === 'queue_full') return `as many requests wait for their turn as may; ${used}`;
  const fits =
    event.retry_after_ms === null
      ? `cost ${count(event.cost)} never fits`
      : `cost ${count(event.cost)} fits in ${duration(event.retry_after_ms)}`;
  return `${used}; ${fits}`;
}
