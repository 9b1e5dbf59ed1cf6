// Base of a panel: loads its data, and shows errors in the panel.

import { byId, setText, show } from './dom.js';
import { HttpError, Unavailable, request } from './api.js';
import { plain } from './format.js';

/** Describes an error for the user. */
export const errorText = (error, what) => plain(describe(error, what));

function describe(error, what) {
  if (error instanceof Unavailable) return `${what}: ${error.message}`;
  if (!(error instanceof HttpError)) throw error; // a bug of this page: report it in the console
  switch (error.status) {
    case 401:
      return `${what}: token required.`;
    case 403:
      return `${what}: not allowed. ${error.message}`;
    default:
      return `${what}: ${error.message}`;
  }
}

export class Panel {
  #section;
  #what;
  #busy = false;
  #again = false;

  /** `id` is that of the section; `what` starts its error texts. */
  constructor(id, what, hooks) {
    this.#section = byId(id);
    this.#what = what;
    this.hooks = hooks;
  }

  note(text) {
    const note = this.#section.querySelector(':scope > .note');
    setText(note, text);
    show(note, text !== '');
  }

  /** Loads and draws. Calls during a load are merged into one load after it. */
  async load(path, draw) {
    if (this.#busy) {
      this.#again = true;
      return;
    }
    this.#busy = true;
    try {
      const response = await request(typeof path === 'function' ? path() : path);
      this.note('');
      draw(response);
    } catch (error) {
      if (error instanceof HttpError && error.status === 401) this.hooks.tokenRequired(error);
      this.note(errorText(error, this.#what));
    } finally {
      this.#busy = false;
    }
    if (this.#again) {
      this.#again = false;
      await this.load(path, draw);
    }
  }
}
