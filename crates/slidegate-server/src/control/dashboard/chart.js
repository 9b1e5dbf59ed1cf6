// Shared by both charts: theme colours and responsive size.

import { byId } from './dom.js';

const FONT = '11px system-ui, sans-serif';

/** The current value of a colour variable of style.css. */
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

/** The smallest round number of at least `n`, so that the axis rarely changes. */
export function ceiling(n) {
  const decade = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * decade).find((step) => step >= n);
}

/** Grid steps of an integer axis. */
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

/** A chart that fills its container and redraws when the theme changes. */
export function chart(container, options, data) {
  const height = () => Number.parseInt(getComputedStyle(container).height, 10);
  const plot = new globalThis.uPlot(
    {
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      ...options,
      width: container.clientWidth,
      height: height(),
    },
    data,
    container,
  );
  new ResizeObserver(() => {
    if (container.clientWidth > 0 && container.clientWidth !== plot.width)
      plot.setSize({ width: container.clientWidth, height: height() });
  }).observe(container);
  addEventListener('themechange', () => plot.redraw(true, true));
  return plot;
}
