// The limit of one policy, changed for the whole fleet: what it is now, what it shall be, and once more whether that is
// meant. What was done stands below the policies, with its undo.

import { byId, el, say, show } from './dom.js';
import { Refusal, ask } from './api.js';
import { sentence } from './panel.js';
import { count, exactDuration, quota } from './format.js';

export class Limit {
  #hooks;
  #dialog = byId('limit-dialog');
  #form = byId('limit-form').elements;
  #policy = null;
  /** What is sent once it is confirmed. */
  #change = null;

  constructor(hooks) {
    this.#hooks = hooks;
    byId('limit-form').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#change) this.#make();
      else this.#review();
    });
    byId('limit-form').addEventListener('input', () => this.#reconsider());
    byId('limit-cancel').addEventListener('click', () => this.#dialog.close());
    byId('limit-back').addEventListener('click', () => {
      this.#reconsider();
      this.#form.limit.focus();
    });
  }

  /** Asks for another limit of a policy, as it was seen last. */
  edit(policy) {
    this.#policy = policy;
    say(byId('limit-title'), `Limit of ${policy.name}`);
    say(byId('limit-now'), `Now ${words(policy)}${policy.mode === 'shadow' ? ', in shadow' : ''}.`);
    this.#form.limit.value = policy.limit;
    this.#form.window.value = exactDuration(policy.window_ms);
    this.#reconsider();
    this.#dialog.showModal();
    this.#form.limit.select();
  }

  /** Back to the fields: nothing is confirmed. */
  #reconsider() {
    this.#change = null;
    show(byId('limit-back'), false);
    say(byId('limit-go'), 'Review');
    this.#say('', '');
  }

  #say(text, state) {
    const said = byId('limit-said');
    say(said, text);
    said.dataset.state = state;
  }

  #review() {
    const { name, limit, window_ms: windowMs } = this.#policy;
    const wanted = { limit: this.#form.limit.valueAsNumber, window: this.#form.window.value.trim() };
    if (wanted.limit === limit && wanted.window === exactDuration(windowMs)) {
      this.#say('That is what it is now.', 'failed');
      return;
    }
    this.#change = wanted;
    this.#say(
      `Change ${name} from ${quota(limit, windowMs)} to ${count(wanted.limit)} / ${wanted.window}, at once and on all ` +
        'instances? What keys have used stays.',
      'asked',
    );
    show(byId('limit-back'), true);
    say(byId('limit-go'), 'Change it');
    byId('limit-go').focus();
  }

  async #make() {
    const { name } = this.#policy;
    const go = byId('limit-go');
    go.disabled = true;
    let isRefused = false;
    try {
      const made = await ask(path(name), { method: 'PUT', body: this.#change });
      this.#dialog.close();
      this.#done(made);
      this.#hooks.changed();
    } catch (error) {
      this.#reconsider();
      isRefused = this.#failed(error, byId('limit-said'), 'Not changed');
    } finally {
      go.disabled = isRefused;
    }
  }

  /** What was done, and the way back. */
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
      const { done } = await ask(`/v1/changes/${change}/undo`, { method: 'POST', body: {} });
      say(result, `Undone. ${policy}: ${done}.`);
      result.dataset.state = 'done';
      this.#hooks.changed();
    } catch (error) {
      this.#failed(error, result, 'Not undone');
    }
  }

  /** Says why something was not done; whether it cannot be done at all. */
  #failed(error, room, what) {
    if (error instanceof Refusal && error.status === 401) this.#hooks.tokenWanted(error);
    say(room, sentence(error, what));
    room.dataset.state = 'failed';
    if (!(error instanceof Refusal && error.status === 403)) return false;
    this.#hooks.readOnly(error);
    return true;
  }
}

const words = ({ limit, window_ms: windowMs, algorithm, burst }) =>
  `${quota(limit, windowMs)} ${algorithm}${burst ? `, burst ${count(burst)}` : ''}`;

const path = (name) => `/v1/policies/${encodeURIComponent(name)}`;
