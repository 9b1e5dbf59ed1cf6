// What both charts share: colours that follow the theme, and a size that follows the room.

import { byId } from './dom.js';

const FONT = '11px system-ui, sans-serif';

/** The value of a colour of style.css just now. */
export function colour(name, alpha = 1) {
  const probe = byId('version');
  const before = probe.style.color;
  probe.style.color = `var(--${name})`;
  const rgb = getComputedStyle(probe).color;
  probe.style.color = before;
  if (alpha === 1) return rgb;
  const [r, g, b] = rgb.match(/[\d.]+/g);
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

/** The least round number that is not below `n`, so that an axis seldom moves. */
export function ceiling(n) {
  const decade = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * decade).find((step) => step >= n);
}

/** Steps between the lines of an axis that counts whole things. */
export const ROUND = [1, 2, 5]
  .flatMap((step) => Array.from({ length: 15 }, (_, zeros) => step * 10 ** zeros))
  .sort((a, b) => a - b);

export const axis = (more) => ({
  stroke: () => colour('muted'),
  grid: { stroke: () => colour('line'), width: 1 },
  ticks: { show: false },
  font: FONT,
  ...more,
});

/** A chart that fills the width of its room and is drawn anew when the theme changes. */
export function chart(room, options, data) {
  const height = () => Number.parseInt(getComputedStyle(room).height, 10);
  const plot = new globalThis.uPlot(
    {
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      ...options,
      width: room.clientWidth,
      height: height(),
    },
    data,
    room,
  );
  new ResizeObserver(() => {
    if (room.clientWidth > 0 && room.clientWidth !== plot.width)
      plot.setSize({ width: room.clientWidth, height: height() });
  }).observe(room);
  addEventListener('themechange', () => plot.redraw(true, true));
  return plot;
}
