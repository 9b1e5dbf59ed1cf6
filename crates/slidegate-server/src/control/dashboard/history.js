// The last hour, in steps of ten seconds, as the service keeps it. The panels that show it draw again whenever it is
// loaded, and keep what they show while the service is unreachable.

import { byId } from './dom.js';
import { Panel } from './panel.js';
import { isCandidate } from './format.js';

/** A step that has lasted less is too short for a rate. */
const MIN_STEP_MS = 1000;

export class History {
  #panel;
  #form = byId('history-form');
  #onDraw;
  /** The last response, without steps that are not complete. */
  last = null;

  /** Calls `onDraw(history)` whenever it was loaded. */
  constructor(hooks, onDraw) {
    this.#panel = new Panel('rates', 'History', hooks);
    this.#onDraw = onDraw;
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    const controls = [...this.#form.querySelectorAll('input'), this.#form.elements.instance];
    for (const control of controls) control.addEventListener('change', () => this.refresh());
  }

  /** The chosen range. */
  get minutes() {
    return Number(this.#form.elements.minutes.value);
  }

  /** Chooses the shortest range that contains a time. Returns whether there is one. */
  show(at) {
    const minutes = [5, 15, 60].find((minutes) => Date.now() - at < minutes * 60_000);
    if (minutes) this.#form.elements.minutes.value = String(minutes);
    return minutes !== undefined;
  }

  #query() {
    const instance = this.#form.elements.instance.value;
    return new URLSearchParams({ minutes: this.minutes, ...(instance && { instance }) });
  }

  refresh() {
    return this.#panel.load(
      () => `/v1/history?${this.#query()}`,
      (history) => {
        this.last = withoutLast(history, incomplete(history));
        this.#onDraw(this.last);
      },
    );
  }
}

/** How many steps at the end have only just begun, or lack what other instances have yet to report. */
function incomplete({ at_ms: at, lasted_ms: lasted, complete_until_ms: until }) {
  const isShort = lasted.length > 1 && lasted.at(-1) < MIN_STEP_MS;
  return Math.max(Number(isShort), until === null ? 0 : at.filter((end) => end > until).length);
}

/** The history without so many steps at its end. */
function withoutLast(history, steps) {
  const cut = (value) => (Array.isArray(value) ? value.slice(0, value.length - steps) : value);
  const { decisions, held, markers, ...lists } = history;
  return {
    ...Object.fromEntries(Object.entries(lists).map(([name, value]) => [name, cut(value)])),
    decisions: decisions.map((one) => ({ ...one, counts: cut(one.counts) })),
    held: held.map((one) => ({ ...one, held: cut(one.held) })),
    markers,
  };
}

/** Sums lists of figures step by step. */
export const sumOf = (lists, length) =>
  lists.reduce((sums, list) => sums.map((sum, at) => (list[at] === null ? null : sum + list[at])), new Array(length).fill(0));

/** Counts per step as rates per second. A part of a second counts as a whole one. */
export const perSecond = (history, counts) =>
  counts.map((count, at) => (count === null ? null : (1000 * count) / Math.max(1000, history.lasted_ms[at])));

/** Figures of all instances, step by step: null where those of others are unknown. */
export const known = (history, values) => values.map((value, at) => (history.others_unknown[at] ? null : value));

/** Checks that match, step by step: `{ policy, verdict, source }` are tested, `policy` null is all of them. */
export const checksOf = (history, matches) =>
  sumOf(
    history.decisions.filter((one) => !isCandidate(one.policy) && matches(one)).map(({ counts }) => counts),
    history.at_ms.length,
  );

export const total = (values) => values.reduce((sum, value) => sum + value, 0);

/** Whether a fallback of this instance decided, instead of the store or a denial that it made before. */
export const isFallback = ({ source }) => ['local', 'allow', 'deny'].includes(source);
