// Charts over triggers, drawn with uPlot. Colours come from the style sheet, for both themes.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const DAY = 86_400;
const LABEL = "12px system-ui, sans-serif";
const LETTER = 7; // pixels

// Axis labels: dates alone if every label is a midnight; else times, with the date where a day begins.
function times(plot, at) {
  const texts = at.map((seconds) => new Date(seconds * 1000).toISOString());
  if (at.every((seconds) => seconds % DAY === 0)) return texts.map((text) => text.slice(0, 10));
  return texts.map((text, n) => {
    const hour = text.slice(11, at[n] % 60 ? 19 : 16);
    return n === 0 || text.slice(0, 10) !== texts[n - 1].slice(0, 10) ? `${hour}\n${text.slice(0, 10)}` : hour;
  });
}

function axes(time, label) {
  const look = { stroke: colour("--muted"), font: LABEL, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const width = (plot, texts) => 18 + LETTER * Math.max(4, ...(texts ?? []).map((text) => text.length));
  return [
    { ...look, grid: { show: false }, space: 100, label, labelFont: LABEL, labelSize: label ? 20 : 0, size: time ? 48 : 30, values: time ? times : (_, at) => at.map((x) => x.toLocaleString("en")) },
    { ...look, size: width, values: (_, at) => at.map((y) => y.toLocaleString("en")) },
  ];
}

// Draws vertical lines from low to high: whiskers, and the band of points that stand alone.
function drawWhiskers(plot, x, band, whiskers) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = colour("--accent");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.beginPath();
  x.forEach((at, n) => {
    const alone = band && band[0][n] !== null && (band[0][n - 1] ?? null) === null && (band[0][n + 1] ?? null) === null;
    const [low, high] = (alone ? band : whiskers).map((edge) => edge[n] ?? null);
    if (low === null || high === null) return;
    const across = plot.valToPos(at, "x", true);
    ctx.moveTo(across, plot.valToPos(low, "y", true));
    ctx.lineTo(across, plot.valToPos(high, "y", true));
  });
  ctx.stroke();
  ctx.restore();
}

// `lines`: {label, values, style}. `band` and `whiskers`: [low, high]. `span`: the ends of the axis.
export function chart(place, { x, time, lines, band = null, whiskers = [[], []], span = null, label = "", zero = false, read = null }) {
  const options = {
    width: Math.max(place.clientWidth, 200),
    height: place.clientWidth < 500 ? 220 : 300,
    legend: { show: false },
    padding: [12, 44, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    scales: { x: { time, range: span ?? undefined }, y: { range: (_, low, high) => padded(zero ? Math.min(low, 0) : low, high) } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    axes: axes(time, label),
    series: [{}],
    bands: [],
    hooks: {
      setCursor: [(plot) => read && read(plot.cursor.idx)],
      draw: [(plot) => drawWhiskers(plot, x, band, whiskers)],
    },
  };
  const data = [x];
  for (const edge of [...(band ? [band[1], band[0]] : []), ...whiskers.filter((one) => one.length)]) {
    data.push(edge);
    options.series.push({ stroke: "transparent", points: { show: false } });
  }
  if (band) options.bands.push({ series: [1, 2], fill: colour("--band") });
  for (const line of lines) {
    const look = {
      value: { stroke: colour("--accent"), width: 2, points: { show: x.length < 60, size: 5 } },
      open: { stroke: colour("--accent"), width: 0, points: { show: true, size: 8, width: 2, stroke: colour("--accent"), fill: colour("--card") } },
      threshold: { stroke: colour("--warn"), width: 1.5, dash: [5, 4] },
    }[line.style];
    data.push(line.values);
    options.series.push({ label: line.label, ...look });
  }
  place.replaceChildren();
  const plot = new uPlot(options, data, place);
  return {
    destroy: () => plot.destroy(),
    resize: () => plot.setSize({ width: Math.max(place.clientWidth, 200), height: options.height }),
  };
}

// The charts of a view, drawn once their places are on the page, and again in another theme.
// `figures`: [place, options of `chart`].
export function charts(figures) {
  let drawn = [];
  const end = () => drawn.forEach((one) => one.destroy());
  return {
    shown: () => {
      end();
      drawn = figures.map(([place, options]) => chart(place, options));
    },
    resized: () => drawn.forEach((one) => one.resize()),
    end,
  };
}

// Values with two standard deviations of noise to either side; null where there is no value.
export function edges(values, deviations) {
  return [-2, 2].map((side) => values.map((value, n) => (value === null || deviations[n] === null ? null : value + side * deviations[n])));
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low < (high - low) * 2 ? Math.min(0, low) : low - room, high + room];
}
