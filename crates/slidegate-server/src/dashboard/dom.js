// Elements. Everything that comes from the service enters the page here, as text and never as markup:
// a key is whatever a client chose to send.

/** The element of this id; the page is broken without it. */
export const byId = (id) => {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no #${id}`);
  return node;
};

/** An element with attributes, handlers (`onclick: f`) and children; text among the children stays text. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';

/** The same for drawings. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Sets text only where it changed, so that screen readers and selections are left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

const kept = new WeakMap();

/**
 * Makes the children of `parent` show `items`, keeping the nodes of those that stay: the focus and the scroll position
 * survive an update. `create(item)` gives `{ node, update(item) }`; it may keep what `keyOf` tells items apart by, and
 * nothing else, since all the rest is of the first time.
 */
export function list(parent, items, keyOf, create) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (after.has(key)) continue;
    const entry = before.get(key) ?? create(item);
    entry.update(item);
    after.set(key, entry);
    if (entry.node === place) place = place.nextSibling;
    else parent.insertBefore(entry.node, place);
  }
  for (const [key, entry] of before) {
    if (!after.has(key)) entry.node.remove();
  }
  kept.set(parent, after);
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

/** Options of a select: `[value, text]` pairs. What was chosen stays chosen while it is there. */
export function options(select, pairs) {
  const wanted = JSON.stringify(pairs);
  if (select.dataset.pairs === wanted) return;
  const chosen = select.value;
  select.dataset.pairs = wanted;
  select.replaceChildren(...pairs.map(([value, text]) => el('option', { value }, text)));
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}

/** A `dt` and `dd` pair in a group. */
export const fact = (name, ...value) => el('div', {}, el('dt', {}, name), el('dd', {}, ...value));
