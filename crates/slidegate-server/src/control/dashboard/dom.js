// DOM helpers. Data from the service is only inserted as text, never as HTML: clients choose keys.

/** The element with this id. Throws if it is missing. */
export const byId = (id) => {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no #${id}`);
  return node;
};

/** Creates an element with attributes, handlers (`onclick: f`) and children; strings become text nodes. */
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

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Sets the text if it changed, so that screen readers and selections are not disturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

const kept = new WeakMap();

/**
 * Makes the children of `parent` show `items`. Reuses nodes by key, so that focus and scroll position survive.
 * `create(item)` returns `{ node, update(item) }`. It may only use the item's key: everything else can change.
 */
export function list(parent, items, keyOf, create) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let next = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (after.has(key)) continue;
    const entry = before.get(key) ?? create(item);
    entry.update(item);
    after.set(key, entry);
    if (entry.node === next) next = next.nextSibling;
    else parent.insertBefore(entry.node, next);
  }
  for (const [key, entry] of before) {
    if (!after.has(key)) entry.node.remove();
  }
  kept.set(parent, after);
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

/** Sets the options of a select from `[value, text]` pairs, and keeps the selection if possible. */
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
