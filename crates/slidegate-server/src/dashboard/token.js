// The question for a token, when the service wants one.

import { byId, say, show } from './dom.js';
import { token } from './api.js';

export class TokenDialog {
  #dialog = byId('token-dialog');
  /** Not asked again until something was tried by hand: a dialog that comes back by itself is a nuisance. */
  #isDeclined = false;

  constructor(onToken) {
    byId('token-form').addEventListener('submit', (event) => {
      event.preventDefault();
      token.set(byId('token').value.trim());
      byId('token').value = '';
      this.#dialog.close();
      show(byId('forget'), true);
      onToken();
    });
    byId('token-later').addEventListener('click', () => this.#dialog.close());
    this.#dialog.addEventListener('close', () => {
      this.#isDeclined = token.get() === null;
    });
    byId('forget').addEventListener('click', () => {
      token.forget();
      location.reload();
    });
    show(byId('forget'), token.get() !== null);
  }

  /** Somebody tries by hand: it may be asked for once more. */
  allow() {
    this.#isDeclined = false;
  }

  ask(refusal) {
    if (this.#dialog.open || this.#isDeclined || refusal.held !== token.get()) return;
    say(byId('token-why'), token.get() ? `The one it was given is not accepted: ${refusal.message}` : refusal.message);
    token.forget();
    show(byId('forget'), false);
    this.#dialog.showModal();
  }
}
