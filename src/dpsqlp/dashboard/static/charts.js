// Charts over triggers, drawn with uPlot. Colours come from the style sheet, for both themes.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Axis labels: the time, with the date where a day begins.
function times(plot, at) {
  return at.map((seconds, n) => {
    const text = new Date(seconds * 1000).toISOString();
    const day = n === 0 || text.slice(0, 10) !== new Date(at[n - 1] * 1000).toISOString().slice(0, 10);
    const hour = seconds % 60 ? text.slice(11, 19) : text.slice(11, 16);
    return day ? `${hour}\n${text.slice(0, 10)}` : hour;
  });
}

function axes(time, label) {
  const look = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return [
    { ...look, grid: { show: false }, space: 70, label, labelFont: "12px system-ui, sans-serif", labelSize: label ? 20 : 0, size: time ? 48 : 30, values: time ? times : (_, at) => at.map((x) => (Number.isInteger(x) ? x : "")) },
    { ...look, size: 62, values: (_, at) => at.map((y) => y.toLocaleString("en")) },
  ];
}

// `lines`: {label, values, style}, with style "value", "threshold" or "other". `band`: [low, high].
export function chart(place, { x, time, lines, band = null, label = "", zero = false, read = null }) {
  const options = {
    width: Math.max(place.clientWidth, 200),
    height: place.clientWidth < 500 ? 220 : 300,
    legend: { show: false },
    padding: [12, 36, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    scales: { x: { time }, y: { range: (_, low, high) => padded(zero ? Math.min(low, 0) : low, high) } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    axes: axes(time, label),
    series: [{}],
    bands: [],
    hooks: { setCursor: [(plot) => read && read(plot.cursor.idx)] },
  };
  const data = [x];
  if (band) {
    for (const edge of [band[1], band[0]]) {
      data.push(edge);
      options.series.push({ stroke: "transparent", points: { show: false } });
    }
    options.bands.push({ series: [1, 2], fill: colour("--band") });
  }
  for (const line of lines) {
    const look = {
      value: { stroke: colour("--accent"), width: 2, points: { show: x.length < 60, size: 5 } },
      threshold: { stroke: colour("--warn"), width: 1.5, dash: [5, 4], points: { show: x.length === 1, size: 5 } },
      other: { stroke: colour("--muted"), width: 1.5, points: { show: x.length === 1, size: 5 } },
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

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low < (high - low) * 2 ? Math.min(0, low) : low - room, high + room];
}
