// Token dialog: asks for a token when the service requires one.

import { byId, setText, show } from './dom.js';
import { token } from './api.js';

export class TokenDialog {
  #dialog = byId('token-dialog');
  /** The user closed the dialog. It stays closed until the next manual retry. */
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

  /** Allows the dialog to open again after a manual retry. */
  allow() {
    this.#isDeclined = false;
  }

  open(error) {
    if (this.#dialog.open || this.#isDeclined || error.sentToken !== token.get()) return;
    setText(byId('token-why'), token.get() ? `Token rejected: ${error.message}` : error.message);
    token.forget();
    show(byId('forget'), false);
    this.#dialog.showModal();
  }
}
