// Confirmation of a change: what is now, what will be, and whom it affects.

import { byId, el, setText } from './dom.js';

let answer = () => {};

byId('confirm-form').addEventListener('submit', (event) => {
  event.preventDefault();
  answer(true);
  byId('confirm-dialog').close();
});
byId('confirm-cancel').addEventListener('click', () => byId('confirm-dialog').close());
byId('confirm-dialog').addEventListener('close', () => answer(false));

/** Asks, unless it already does. `facts` are pairs of a name and a text. Resolves to whether it was confirmed. */
export async function confirmed({ title, facts, action }) {
  if (byId('confirm-dialog').open) return false;
  setText(byId('confirm-title'), title);
  byId('confirm-facts').replaceChildren(
    ...facts.map(([name, text]) => el('div', {}, el('dt', {}, name), el('dd', {}, text))),
  );
  setText(byId('confirm-go'), action);
  byId('confirm-dialog').showModal();
  byId('confirm-go').focus();
  return new Promise((resolve) => {
    answer = resolve;
  });
}
