// Export of what a panel shows, as JSON and CSV.

import { el } from './dom.js';

/** Adds the buttons to the header of a panel. `rows()` returns objects with the same fields. */
export function exports(section, name, rows) {
  const button = (format, type, text) =>
    el(
      'button',
      {
        type: 'button',
        class: 'quiet small',
        'aria-label': `Export ${name} as ${format}`,
        onclick: () => save(`slidegate-${name}.${format.toLowerCase()}`, type, text(rows())),
      },
      format,
    );
  section
    .querySelector(':scope > header')
    .append(
      el(
        'span',
        { class: 'exports' },
        button('JSON', 'application/json', (all) => JSON.stringify(all, null, 1)),
        button('CSV', 'text/csv', csv),
      ),
    );
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el('a', { href: url, download: name });
  link.click();
  // After the download has begun.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Rows as CSV (RFC 4180). A spreadsheet must not take a key for a formula. */
export function csv(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    if (typeof value === 'number') return String(value);
    const text = value === null || value === undefined ? '' : String(value);
    const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
  };
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}
