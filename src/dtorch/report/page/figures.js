// The figures: each function takes the report, its views and a colour lookup, and gives Plotly's {data, layout};
// or a text, where there is nothing to draw.

const BOUNDS = ["compute", "memory", "communication", "launch"];
const SYMBOLS = { compute: "circle", memory: "square", communication: "diamond", launch: "triangle-up" };
const CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "temporaries"];
const NO_DEVICE = "No device was named, so nothing has a time.";

function baseLayout(colour, extra) {
  const axis = {
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), tickcolor: colour("line"),
    automargin: true, title: { standoff: 12 },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
    margin: { l: 16, r: 16, t: 16, b: 16 }, hovermode: "closest", showlegend: true,
    modebar: { bgcolor: colour("surface"), color: colour("muted"), activecolor: colour("ink") },
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("muted") }, itemsizing: "constant", traceorder: "normal" },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis, title: { ...axis.title, ...extra.xaxis?.title } },
    yaxis: { ...axis, ...extra.yaxis, title: { ...axis.title, ...extra.yaxis?.title } },
  };
}

// The unit in which an axis up to `largest` is written, such as ms: values are divided by `scale`.
function scaleOf(largest, unit) {
  const [scale, prefix] = (unit === "s" ? UNITS : UNITS.slice(0, 7)).find(([size]) => largest >= 2 * size) || [1, ""];
  return { scale, name: prefix + unit };
}

// Ticks of a logarithmic axis at powers of ten, at most seven, with decimal prefixes.
function decades(low, high, unit) {
  const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
  const step = Math.ceil((last - first + 1) / 7);
  const values = [];
  for (let power = first; power <= last; power += step) values.push(10 ** power);
  return { tickmode: "array", tickvals: values, ticktext: values.map((value) => quantity(value, unit)) };
}

function operatorHover(report, views, point, unit) {
  const operator = report.operators[point.indices[0]];
  const others = point.indices.length - 1;
  const lines = [
    `<b>${plain(operator.kind)}</b>  ${plain(operator.phase || "")}`,
    plain(moduleText(operator)) + (others ? `  and ${count(others, "other")} like it` : ""),
    ...operator.inputs.map((tensor) => `in   ${plain(tensorText(tensor))}`),
    ...operator.outputs.map((tensor) => `out  ${plain(tensorText(tensor))}`),
    unit === "FLOP/s"
      ? `${quantity(operator.flops_max_device, "FLOP")}, ${quantity(operator.traffic_bytes_max_device, "B")}, ${quantity(point.x)} FLOP/B`
      : `${quantity(point.x, "B")} ${operator.bound === "communication" ? `received, ${operator.communication.kind} over ${plain(operator.communication.axes)}` : "moved"}`,
    `${quantity(operator.time_s, "s")} each, ${share(point.time, views.busy)} of the time; bound by ${operator.bound}`,
  ];
  if (point.measured_rate !== null) {
    const above = point.above ? ", above its roof" : "";
    lines.push(`measured ${quantity(point.measured_rate, unit)}${above}, predicted ${quantity(point.rate, unit)}`);
  }
  return lines.join("<br>");
}

// Operators with FLOPs: rate over intensity.
function rooflineFigure(report, views, colour) {
  if (!report.device) return NO_DEVICE;
  if (!views.roofline.points.length) return "No operator has FLOPs, bytes and a time.";
  return roofFigure(report, views, colour, views.roofline, { title: "intensity, FLOPs per byte moved", unit: "" }, "FLOP/s");
}

// All others: rate over the bytes that they move or receive.
function movesFigure(report, views, colour) {
  if (!report.device) return NO_DEVICE;
  if (!views.moves.points.length) return "Every operator that takes time has FLOPs.";
  return roofFigure(report, views, colour, views.moves, { title: "bytes moved or received", unit: "B" }, "B/s");
}

// Points below their roofs, both axes logarithmic, as wide as all of them ask for.
function roofFigure(report, views, colour, { points, roofs }, across, unit) {
  const xs = points.map((point) => point.x), ridges = roofs.flatMap((roof) => roof.ridge ?? []);
  const left = Math.min(...xs, ...ridges.map((ridge) => ridge / 25)) / 4, right = Math.max(...xs, ...ridges) * 8;
  const rates = points.flatMap((point) => [point.rate, point.measured_rate ?? point.rate]);
  const peaks = roofs.map((roof) => roof.peak);
  const bottom = Math.min(...rates, ...peaks.map((peak) => peak / 50)) / 2, top = Math.max(...rates, ...peaks) * 4;
  const data = [], annotations = [], dashes = ["solid", "dash", "dot", "dashdot"];
  const note = (x, y, text, more) => annotations.push({ x: Math.log10(x), y: Math.log10(y), text, font: { size: 12, color: colour("muted") }, ...more });
  const arrow = (ax, ay) => ({ showarrow: true, arrowcolor: colour("muted"), arrowwidth: 1, arrowhead: 0, ax, ay });
  roofs.forEach((roof, number) => {
    const bend = roof.ridge ?? left;
    data.push({
      type: "scatter", mode: "lines", x: [left, bend, right], y: [roof.slope ? left * roof.slope : roof.peak, roof.peak, roof.peak],
      line: { color: colour("muted"), width: 2, dash: dashes[number % 4] }, hoverinfo: "skip", showlegend: false,
    });
    // Where operators are few: at the right of an intensity, at the left of bytes.
    const side = roof.ridge ? { x: Math.log10(right), xanchor: "right" } : { x: Math.log10(left), xanchor: "left", xshift: 6 };
    note(right, roof.peak, `${plain(roof.name)}  ${quantity(roof.peak, unit)}`, { showarrow: false, yanchor: "bottom", font: { size: 12 }, ...side });
    if (roof.ridge) note(roof.ridge, roof.peak, `ridge ${quantity(roof.ridge)} FLOP/B`, arrow(-46, -26));
  });
  if (ridges.length) {
    const low = Math.max(left, bottom / roofs[0].slope) * 2.2;
    note(low, low * roofs[0].slope, quantity(roofs[0].slope, "B/s"), arrow(52, 10));
  }
  const largest = Math.max(...points.map((point) => point.time));
  const marks = (name, some, rate, marker) => ({
    type: "scatter", mode: "markers", name, x: some.map((point) => point.x), y: some.map(rate), marker, hoverinfo: "text",
    customdata: some.map((point) => point.indices), hovertext: some.map((point) => operatorHover(report, views, point, unit)),
  });
  for (const bound of BOUNDS) {
    const mine = points.filter((point) => point.bound === bound);
    if (!mine.length) continue;
    data.push(marks(`bound by ${bound}`, mine, (point) => point.rate, {
      symbol: SYMBOLS[bound], color: colour(bound), opacity: 0.72, line: { color: colour("surface"), width: 1 },
      size: mine.map((point) => point.time), sizemode: "area", sizeref: 2 * largest / 46 ** 2, sizemin: 3.5,
    }));
  }
  const measured = points.filter((point) => point.measured_rate !== null), above = measured.filter((point) => point.above);
  const crosses = (name, some, symbol, tint, size) => some.length && data.push(
    marks(name, some, (point) => point.measured_rate, { symbol, size, color: tint, line: { color: tint, width: 2 } }));
  data.push({
    type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { color: colour("muted"), width: 1, dash: "dot" },
    x: measured.flatMap((point) => [point.x, point.x, null]), y: measured.flatMap((point) => [point.rate, point.measured_rate, null]),
  });
  crosses("measured", measured.filter((point) => !point.above), "x-thin", colour("ink"), 8);
  crosses("measured above its roof", above, "triangle-up-open", colour("alarm"), 13);
  return {
    data,
    layout: baseLayout(colour, {
      annotations,
      xaxis: { type: "log", range: [Math.log10(left), Math.log10(right)], ...decades(left, right, across.unit), title: { text: across.title } },
      yaxis: { type: "log", range: [Math.log10(bottom), Math.log10(top)], ...decades(bottom, top, unit), title: { text: "rate of one device" } },
    }),
  };
}

function modulesFigure(report, views, colour, apart) {
  const tree = apart ? views.modules_apart : views.modules;
  if (tree.length < 2) return NO_DEVICE;
  const whole = tree[0].time;
  const hover = (node) => [
    `<b>${plain(node.label)}</b>`,
    `${quantity(node.time, "s")}, ${share(node.time, whole)} of the time; mostly bound by ${node.bound}` +
      (node.measured ? `; measured ${quantity(node.measured, "s")}` : ""),
    `${count(node.uses, "operator")}, ${quantity(node.flops, "FLOP")}, ${quantity(node.traffic, "B")} moved, ${quantity(node.sent, "B")} received`,
  ].join("<br>");
  return {
    data: [{
      type: "icicle", ids: tree.map((node) => node.id), parents: tree.map((node) => node.parent), labels: tree.map((node) => plain(node.label)),
      values: tree.map((node) => (node.leaf ? node.time : 0)), branchvalues: "remainder", sort: false, maxdepth: 6,
      text: tree.map((node) => share(node.time, whole)), textinfo: "label+text", hovertext: tree.map(hover), hoverinfo: "text",
      marker: { colors: tree.map((node) => colour(node.bound)), line: { color: colour("surface"), width: 1.5 } },
      leaf: { opacity: 1 }, tiling: { orientation: "v", pad: 1 }, textfont: { color: colour("surface") },
      pathbar: { textfont: { color: colour("surface") } },
    }],
    layout: baseLayout(colour, { margin: { l: 0, r: 0, t: 4, b: 0 }, uniformtext: { minsize: 11, mode: "hide" } }),
  };
}

function memoryFigure(report, views, colour) {
  const steps = report.memory;
  if (!steps.length) return "Nothing is held.";
  const timed = Boolean(report.device);
  const x = steps.map((step) => (timed ? step.t_s : step.index));
  const sums = steps.map((step) => CATEGORIES.reduce((sum, name) => sum + (step.bytes[name] || 0), 0));
  const used = CATEGORIES.filter((name) => steps.some((step) => step.bytes[name]));
  const peak = Math.max(...sums), capacity = report.device?.capacity;
  // A capacity far above the peak would flatten the figure; then a note tells it.
  const drawn = capacity && capacity < 3 * peak;
  const space = scaleOf(Math.max(peak, drawn ? capacity : 0), "B"), time = scaleOf(timed ? x.at(-1) : 0, "s");
  const across = timed ? x.map((at) => at / time.scale) : x;
  const data = used.map((name) => ({
    type: "scatter", mode: "lines", name, stackgroup: "held", x: across, y: steps.map((step) => (step.bytes[name] || 0) / space.scale),
    line: { shape: "hv", width: 0.5, color: colour(name) }, fillcolor: colour(name),
    hovertext: steps.map((step) => `${name} ${quantity(step.bytes[name] || 0, "B")}`), hoverinfo: "text",
  }));
  data.push({
    type: "scatter", mode: "lines", name: "all", x: across, y: sums.map((sum) => sum / space.scale), line: { shape: "hv", width: 1.5, color: colour("ink") }, showlegend: false,
    hovertext: sums.map((sum, place) => `<b>${quantity(sum, "B")}</b> at ${timed ? quantity(x[place], "s") : `operator ${x[place]}`}`), hoverinfo: "text",
  });
  const ceiling = capacity / space.scale;
  return {
    data,
    layout: baseLayout(colour, {
      hovermode: "x unified",
      xaxis: { title: { text: timed ? `predicted time, ${time.name}` : "operator" }, unifiedhovertitle: { text: " " } },
      yaxis: { title: { text: space.name }, range: [0, 1.12 * Math.max(peak / space.scale, drawn ? ceiling : 0)] },
      shapes: drawn ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: ceiling, y1: ceiling, line: { color: colour("alarm"), width: 1.5, dash: "dash" } }] : [],
      annotations: capacity ? [{
        xref: "paper", x: 1, xanchor: "right", showarrow: false, font: { size: 12, color: drawn ? colour("alarm") : colour("muted") },
        ...(drawn ? { y: ceiling, yanchor: "bottom" } : { yref: "paper", y: 1, yanchor: "top" }),
        text: drawn ? `capacity ${quantity(capacity, "B")}` : `capacity ${quantity(capacity, "B")}, above this figure`,
      }] : [],
    }),
  };
}

function communicationFigure(report, views, colour) {
  const rows = views.exchanges;
  if (!rows.length) return "Nothing is sent between devices.";
  const label = (row) => `${plain(row.axes)}  ${plain(row.kind)}`;
  const order = [...new Set(rows.map(label))].reverse();
  const tints = { implicit: "communication", "asked for": "compute", "of the operator": "launch" };
  const chosen = [...new Set(rows.map((row) => row.chosen))];
  const { scale, name: unit } = scaleOf(Math.max(...order.map((one) => rows.filter((row) => label(row) === one).reduce((sum, row) => sum + row.bytes, 0))), "B");
  return {
    data: chosen.map((choice) => {
      const mine = rows.filter((row) => row.chosen === choice);
      return {
        type: "bar", orientation: "h", name: choice, y: mine.map(label), x: mine.map((row) => row.bytes / scale), marker: { color: colour(tints[choice]) },
        text: mine.map((row) => `${quantity(row.bytes, "B")} in ${row.times}`), textposition: "auto", insidetextanchor: "end", textfont: { size: 12 },
        hovertext: mine.map((row) => `<b>${label(row)}</b>, ${choice}<br>for ${plain(row.cause)}<br>${row.times} times, ${quantity(row.bytes, "B")}, ${quantity(row.time, "s")}`),
        hoverinfo: "text",
      };
    }),
    layout: baseLayout(colour, {
      barmode: "stack", bargap: 0.45,
      xaxis: { title: { text: `received by the busiest device, ${unit}` } },
      yaxis: { categoryorder: "array", categoryarray: order, type: "category", ticklabelstandoff: 6 },
    }),
  };
}

function timelineFigure(report, views, colour) {
  if (!views.timeline.length) return NO_DEVICE;
  const streams = [...new Set(views.timeline.map((segment) => segment.stream))].sort().reverse();
  const { scale, name: unit } = scaleOf(Math.max(...views.timeline.map((segment) => segment.start + segment.time)), "s");
  // Measured operators of no device have no bound.
  const bounds = [...BOUNDS, null].filter((bound) => views.timeline.some((segment) => segment.bound === bound));
  return {
    data: bounds.map((bound) => {
      const mine = views.timeline.filter((segment) => segment.bound === bound);
      return {
        type: "bar", orientation: "h", name: bound ?? "no bound", y: mine.map((segment) => segment.stream), x: mine.map((segment) => segment.time / scale),
        base: mine.map((segment) => segment.start / scale), marker: { color: colour(bound ?? "muted"), line: { width: views.timeline.length < 200 ? 1 : 0, color: colour("surface") } },
        hovertext: mine.map((segment) => {
          const more = segment.count > 1 ? ` and ${count(segment.count - 1, "neighbour")}` : "";
          return `<b>${plain(segment.label)}</b>${more}<br>${plain(moduleText(report.operators[segment.first]))}<br>` +
            `from ${quantity(segment.start, "s")}, for ${quantity(segment.time, "s")}; bound by ${bound ?? "nothing known"}`;
        }),
        hoverinfo: "text",
      };
    }),
    layout: baseLayout(colour, {
      barmode: "overlay", bargap: 0.25, dragmode: "zoom",
      xaxis: { title: { text: `time, ${unit}` } },
      yaxis: { categoryorder: "array", categoryarray: streams, type: "category", fixedrange: true, ticklabelstandoff: 6 },
    }),
  };
}
