// A part of the page that asks for its own figures, and says in its own room why it has none.

import { byId, say, show } from './dom.js';
import { Away, Refusal, ask } from './api.js';

/** What went wrong, as a sentence for the room where figures would stand. */
export function sentence(error, what) {
  if (error instanceof Away) return `${what}: ${error.message}`;
  if (!(error instanceof Refusal)) throw error; // a mistake of this page: the console tells where
  switch (error.status) {
    case 401:
      return `${what}: a token is wanted.`;
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

  /** The section of this id; `what` begins the sentences about what is missing. */
  constructor(id, what, hooks) {
    this.#section = byId(id);
    this.#what = what;
    this.hooks = hooks;
  }

  note(text) {
    const note = this.#section.querySelector(':scope > .note');
    say(note, text);
    show(note, text !== '');
  }

  /** Asks, and draws the answer. Two at once make one that comes after. */
  async load(path, draw) {
    if (this.#busy) {
      this.#again = true;
      return;
    }
    this.#busy = true;
    try {
      const answer = await ask(typeof path === 'function' ? path() : path);
      this.note('');
      draw(answer);
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) this.hooks.tokenWanted(error);
      this.note(sentence(error, this.#what));
    } finally {
      this.#busy = false;
    }
    if (this.#again) {
      this.#again = false;
      await this.load(path, draw);
    }
  }
}
