// The charts of the report. The page has every figure without them; data is only inserted as text.
'use strict';
{
  const outcome = JSON.parse(document.getElementById('outcome').textContent);
  const { start_seconds: start, width_seconds: width, buckets } = outcome.time;
  const times = Array.from({ length: buckets }, (_, at) => start + at * width);
  const FONT = '11px system-ui, sans-serif';
  const compactNumber = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
  const compact = (n) => compactNumber.format(n);
  const count = (n) => new Intl.NumberFormat('en').format(n);
  const plots = [];

  /** The current value of a colour variable of the style. */
  const probe = document.querySelector('header p');
  const colour = (name, alpha = 1) => {
    probe.style.color = `var(--${name})`;
    const rgb = getComputedStyle(probe).color;
    probe.style.removeProperty('color');
    if (alpha === 1) return rgb;
    const [r, g, b] = rgb.match(/[\d.]+/g);
    return `rgba(${r}, ${g}, ${b}, ${alpha})`;
  };

  const axis = (more) => ({
    stroke: () => colour('muted'),
    grid: { stroke: () => colour('line'), width: 1 },
    ticks: { show: false },
    font: FONT,
    ...more,
  });

  const line = (name, more) => ({
    stroke: () => colour(name),
    width: 1.5,
    points: { show: buckets < 2 },
    ...more,
  });

  /** A chart that fills its container. */
  const chart = (container, options, data) => {
    const height = () => Number.parseInt(getComputedStyle(container).height, 10);
    const plot = new uPlot(
      {
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC'),
        padding: [10, 16, 0, 0],
        ...options,
        width: container.clientWidth,
        height: height(),
      },
      data,
      container,
    );
    plots.push(plot);
    new ResizeObserver(() => {
      if (container.clientWidth > 0 && container.clientWidth !== plot.width)
        plot.setSize({ width: container.clientWidth, height: height() });
    }).observe(container);
  };

  /** A dotted line across the chart at a value of y, or from top to bottom at one of x. */
  const marker = (scale, value, name) => (plot) => {
    if (value === null || value === undefined) return;
    const { ctx, bbox } = plot;
    const at = Math.round(plot.valToPos(value, scale, true)) + 0.5;
    ctx.save();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(scale === 'x' ? at : bbox.left, scale === 'x' ? bbox.top : at);
    ctx.lineTo(scale === 'x' ? at : bbox.left + bbox.width, scale === 'x' ? bbox.top + bbox.height : at);
    ctx.stroke();
    ctx.restore();
  };

  const fromZero = (least) => ({ range: (_, __, most) => [0, Math.max((most ?? 0) * 1.08, least)] });
  const utc = (seconds) => new Date(seconds * 1000).toISOString();
  /** Times in UTC, with the date where it is another than before. */
  const timeLabels = (_, ticks) =>
    ticks.map((tick, at) => {
      const text = utc(tick);
      const clock = width < 60 && tick % 60 ? text.slice(11, 19) : text.slice(11, 16);
      return at > 0 && utc(ticks[at - 1]).slice(0, 10) === text.slice(0, 10) ? clock : `${clock}\n${text.slice(0, 10)}`;
    });
  const timeAxis = () => axis({ size: 42, space: 76, values: timeLabels });
  const stepped = () => uPlot.paths.stepped({ align: 1 });

  const overTime = [...document.querySelectorAll('.chart.time')];
  // Neighbouring buckets are summed to steps.
  const stepsOf = (values, size) =>
    Array.from({ length: Math.ceil(values.length / size) }, (_, at) =>
      values.slice(at * size, (at + 1) * size).reduce((sum, value) => sum + value, 0),
    );
  const columns = overTime.map(({ dataset }) => stepsOf(outcome.configured[`${dataset.verdict}_over_time`], Number(dataset.buckets)));
  const readout = document.querySelector('#over-time .readout');
  const idle = readout?.textContent;
  for (const [of, container] of overTime.entries()) {
    const { verdict, buckets: size } = container.dataset;
    const starts = times.filter((_, at) => at % size === 0);
    const read = (plot) => {
      const at = plot.cursor.idx;
      const figures = () => overTime.map(({ dataset }, of) => `${count(columns[of][at])} ${dataset.verdict}`).join(', ');
      readout.textContent = typeof at === 'number' ? `${utc(starts[at]).replace('.000Z', 'Z')}: ${figures()}` : idle;
    };
    chart(
      container,
      {
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: 'time' } },
        scales: { x: { time: true }, y: fromZero(5) },
        axes: [timeAxis(), axis({ size: 52, space: 34, values: (_, ticks) => ticks.map(compact) })],
        series: [{}, line(verdict, { fill: () => colour(verdict, 0.25), paths: stepped() })],
        hooks: { setCursor: [read] },
      },
      [starts, columns[of]],
    );
  }

  for (const container of document.querySelectorAll('.chart.usage')) {
    const { usage } = outcome.configured.policies.find(({ name }) => name === container.dataset.policy);
    const allowed = [...usage.allowed_keys_by_tenth, null];
    const denied = [...usage.allowed_keys_by_tenth.map(() => null), usage.denied_keys];
    const labels = allowed.map((_, at) => (at < 10 ? `< ${(at + 1) * 10} %` : at === 10 ? 'full' : 'denied'));
    const narrow = labels.map((label, at) => (at % 4 === 0 || at === 11 ? label.replace(' %', '') : ''));
    const bars = (name) => ({
      stroke: () => colour(name),
      fill: () => colour(name, 0.55),
      width: 1,
      points: { show: false },
      paths: uPlot.paths.bars({ size: [0.72, 80] }),
    });
    chart(
      container,
      {
        cursor: { show: false },
        scales: { x: { time: false, range: () => [-0.6, labels.length - 0.4] }, y: fromZero(4) },
        axes: [
          axis({
            size: 28,
            grid: { show: false },
            splits: () => labels.map((_, at) => at),
            values: (plot) => (plot.width < 620 ? narrow : labels),
          }),
          axis({ size: 52, space: 30, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
            5e5, 1e6], values: (_, ticks) => ticks.map(compact) }),
        ],
        series: [{}, bars('allowed'), bars('denied')],
      },
      [labels.map((_, at) => at), allowed, denied],
    );
  }

  const swept = document.getElementById('chart-sweep');
  if (swept) {
    const { points, seen, keys, recommended, deny_at_most: atMost } = outcome.sweep;
    const share = (part, whole) => (whole ? (100 * part) / whole : 0);
    const chosen = points.find(({ value }) => value === recommended);
    chart(
      swept,
      {
        scales: { x: { time: false }, y: fromZero(1) },
        axes: [
          axis({ size: 28, space: 60, values: (_, ticks) => ticks.map(compact) }),
          axis({ size: 52, space: 30, values: (_, ticks) => ticks.map((tick) => `${tick} %`) }),
        ],
        series: [{}, line('denied', { points: { show: true, size: 5 } }), line('line3', { points: { show: true, size: 5 } })],
        hooks: { draw: [marker('y', Number.parseFloat(atMost), 'muted'), marker('x', chosen?.number, 'accent')] },
      },
      [
        points.map(({ number }) => number),
        points.map(({ denied }) => share(denied, seen)),
        points.map(({ denied_keys: denied }) => share(denied, keys)),
      ],
    );
  }

  const redraw = () => plots.forEach((plot) => plot.redraw(true, true));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  // On paper the theme is light and nothing can be opened. A chart has the width of a page.
  const resize = (width) => plots.forEach((plot) => plot.setSize({ width: width(plot), height: plot.height }));
  const closed = [...document.querySelectorAll('details:not([open])')];
  addEventListener('beforeprint', () => {
    document.documentElement.dataset.theme = 'light';
    closed.forEach((one) => one.setAttribute('open', ''));
    resize(() => 720);
    redraw();
  });
  addEventListener('afterprint', () => {
    delete document.documentElement.dataset.theme;
    closed.forEach((one) => one.removeAttribute('open'));
    resize((plot) => plot.root.parentElement.clientWidth || plot.width);
    redraw();
  });
  document.documentElement.dataset.charts = String(plots.length);
}
