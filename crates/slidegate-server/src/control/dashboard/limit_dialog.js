// Limit dialog: edits a policy's limit on all instances, with a confirmation.
//
// The result appears below the policies, with an undo button.

import { byId, el, setText, show } from './dom.js';
import { HttpError, request } from './api.js';
import { errorText } from './panel.js';
import { count, exactWindow, policyQuota } from './format.js';

export class LimitDialog {
  #hooks;
  #dialog = byId('limit-dialog');
  #form = byId('limit-form').elements;
  #policy = null;
  /** The change to send once confirmed. */
  #change = null;

  constructor(hooks) {
    this.#hooks = hooks;
    byId('limit-form').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#change) this.#send();
      else this.#review();
    });
    byId('limit-form').addEventListener('input', () => this.#unconfirm());
    byId('limit-cancel').addEventListener('click', () => this.#dialog.close());
    byId('limit-back').addEventListener('click', () => {
      this.#unconfirm();
      this.#form.limit.focus();
    });
  }

  /** Opens the dialog for a policy. `recent` says what its limit has done lately. */
  edit(policy, recent) {
    this.#policy = policy;
    setText(byId('limit-title'), `Limit of ${policy.name}`);
    const { mode, calendar, tiers } = policy;
    const now = [
      `Now ${policyQuota(policy)}${mode === 'shadow' ? ', in shadow' : ''}.`,
      recent,
      tiers && `Only the limit of everything else is changed here; those by ${tiers.by} are in the config file.`,
      calendar && 'A calendar window is changed in the config file.',
    ];
    setText(byId('limit-now'), now.filter(Boolean).join(' '));
    this.#form.limit.value = policy.limit;
    this.#form.window.value = exactWindow(policy);
    this.#form.window.readOnly = Boolean(calendar);
    this.#unconfirm();
    this.#dialog.showModal();
    this.#form.limit.select();
  }

  /** Returns to editing. */
  #unconfirm() {
    this.#change = null;
    show(byId('limit-back'), false);
    setText(byId('limit-go'), 'Review');
    this.#setNote('', '');
  }

  #setNote(text, state) {
    const note = byId('limit-said');
    setText(note, text);
    note.dataset.state = state;
  }

  async #review() {
    const { name, limit, algorithm } = this.#policy;
    const wanted = { limit: this.#form.limit.valueAsNumber, window: this.#form.window.value.trim() };
    const now = { limit, window: exactWindow(this.#policy) };
    if (wanted.limit === now.limit && wanted.window === now.window) {
      this.#setNote('This is the current limit.', 'failed');
      return;
    }
    // What stays is not sent: a length would replace a calendar. What is in flight has a lease instead of a window.
    const key = algorithm === 'in-flight' ? 'lease' : 'window';
    const change = { limit: wanted.limit, ...(wanted.window !== now.window && { [key]: wanted.window }) };
    const go = byId('limit-go');
    go.disabled = true;
    let isForbidden = false;
    try {
      await request(path(name), { method: 'PUT', body: { ...change, dry_run: true } });
    } catch (error) {
      isForbidden = this.#failed(error, byId('limit-said'), 'Not changed');
      return;
    } finally {
      go.disabled = isForbidden;
    }
    // What was typed meanwhile was not looked at.
    if (wanted.limit !== this.#form.limit.valueAsNumber || wanted.window !== this.#form.window.value.trim()) return;
    this.#change = change;
    this.#setNote(
      `Change ${name} from ${count(now.limit)} / ${now.window} to ${count(wanted.limit)} / ${wanted.window}, at once ` +
        'and on all instances? Usage is kept.',
      'asked',
    );
    show(byId('limit-back'), true);
    setText(go, 'Change it');
    go.focus();
  }

  async #send() {
    const { name } = this.#policy;
    const go = byId('limit-go');
    go.disabled = true;
    let isForbidden = false;
    try {
      const made = await request(path(name), { method: 'PUT', body: this.#change });
      this.#dialog.close();
      this.#done(made);
      this.#hooks.changed();
    } catch (error) {
      this.#unconfirm();
      isForbidden = this.#failed(error, byId('limit-said'), 'Not changed');
    } finally {
      go.disabled = isForbidden;
    }
  }

  /** Shows the result and an undo button. */
  #done({ policy, change, done }) {
    const undo = el(
      'button',
      { type: 'button', class: 'quiet write', onclick: () => this.#undo(policy, change, undo) },
      'Undo',
    );
    const result = byId('limit-result');
    result.replaceChildren(`${policy}: ${done}. `, undo);
    result.dataset.state = 'done';
    undo.focus();
  }

  async #undo(policy, change, button) {
    const result = byId('limit-result');
    button.disabled = true;
    try {
      const { done } = await request(`/v1/changes/${change}/undo`, { method: 'POST', body: {} });
      setText(result, `Undone. ${policy}: ${done}.`);
      result.dataset.state = 'done';
      this.#hooks.changed();
    } catch (error) {
      this.#failed(error, result, 'Not undone');
    }
  }

  /** Shows an error. Returns whether the token lacks the right. */
  #failed(error, container, what) {
    if (error instanceof HttpError && error.status === 401) this.#hooks.tokenRequired(error);
    setText(container, errorText(error, what));
    container.dataset.state = 'failed';
    if (!(error instanceof HttpError && error.status === 403)) return false;
    this.#hooks.readOnly();
    return true;
  }
}

const path = (name) => `/v1/policies/${encodeURIComponent(name)}`;
