// Fills the page from the report, draws the figures, and draws them again when the theme changes.

const { report, views } = JSON.parse(byId("data").textContent);
const root = document.documentElement;
const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim() || getComputedStyle(root).getPropertyValue("--muted").trim();
// Named one by one: none of the buttons sends anything anywhere.
const options = (flat) => ({ responsive: true, displaylogo: false, modeBarButtons: [["toImage"], ...(flat ? [] : [["zoom2d", "pan2d", "resetScale2d"]])] });

function draw(id, figure) {
  const place = byId(id);
  if (typeof figure === "string") {
    place.classList.add("none");
    place.textContent = figure;
  } else {
    Plotly.react(place, figure.data, figure.layout, options(figure.data[0].type === "icicle"));
  }
}

function drawModules() {
  draw("modules-figure", modulesFigure(report, views, colour, byId("apart").checked));
}

function drawAll() {
  draw("roofline-figure", rooflineFigure(report, views, colour));
  draw("moves-figure", movesFigure(report, views, colour));
  drawModules();
  draw("memory-figure", memoryFigure(report, views, colour));
  draw("communication-figure", communicationFigure(report, views, colour));
  draw("timeline-figure", timelineFigure(report, views, colour));
}

// ---- words and numbers

// Axes without names are numbered.
function meshText(mesh) {
  const sizes = mesh.shape.map((size, axis) => {
    const name = mesh.dim_names?.[axis] ?? "", link = mesh.axis_links?.[axis];
    return (/^\d*$/.test(name) ? String(size) : `${name}=${size}`) + (link ? ` over ${link}` : "");
  });
  const devices = mesh.shape.reduce((all, size) => all * size, 1);
  return devices === 1 ? "One device" : `${count(devices, "device")} (${sizes.join(", ")})`;
}

function fillHead() {
  const { device } = report;
  byId("title").textContent = report.title;
  byId("where").textContent = `${meshText(report.mesh)}; ` +
    (device ? `${device.name}, ${device.source} roofs` : "no device named");
  byId("made").textContent = `dtorch ${report.dtorch}, torch ${report.torch}, ${report.date}. FLOPs count a multiply-add as 2; bytes are decimal.`;
}

function fillCards() {
  const { total, device } = report;
  const fits = device?.capacity ? total.peak_memory_bytes / device.capacity : null;
  const cards = [
    ["Time", quantity(device ? total.time_s : null, "s"), device ? "predicted" : NO_DEVICE],
    ...(views.measured === null ? [] : [["Measured", quantity(views.measured, "s"), "operators one after the other"]]),
    ["FLOPs", quantity(total.flops), `${quantity(total.flops_max_device)} on the busiest device`],
    ["Utilisation", views.utilisation === null ? "-" : share(views.utilisation, 1), views.roofline.roofs.length ? `of ${quantity(views.roofline.roofs[0].peak, "FLOP/s")}, ${views.roofline.roofs[0].name}` : ""],
    ["Peak memory", quantity(total.peak_memory_bytes, "B"), fits === null ? "of one device" : fits > 1 ? `does not fit: ${share(fits, 1)} of ${quantity(device.capacity, "B")}` : `${share(fits, 1)} of ${quantity(device.capacity, "B")}`, fits > 1],
    ["Communication", quantity(total.communication_bytes_max_device, "B"), "received by the busiest device"],
    ["Kernels", total.kernels.toLocaleString("en"), count(report.operators.length, "operator")],
    ["Unknown prices", String(total.unknown), total.unknown ? "count no FLOPs here" : "every operator is priced", total.unknown > 0],
  ];
  byId("cards").append(...cards.map(([name, value, note, alarm]) =>
    element("dl", { class: alarm ? "card alarm" : "card" }, element("dt", { text: name }), element("dd", { class: "value", text: value }), element("dd", { class: "note", text: note }))));
}

function fillShares() {
  const bars = [["bound by", views.bounds], ["phase", views.phases]].filter(([, parts]) => parts.length);
  const tints = ["compute", "memory", "communication", "launch", "gradients"];
  for (const [name, parts] of bars) {
    const whole = parts.reduce((sum, part) => sum + part.time, 0);
    const tint = (part, place) => `var(--${name === "phase" ? ["parameters", "gradients", "optimizer", "launch"][place % 4] : tints.includes(part.name) ? part.name : "launch"})`;
    const bar = element("div", { class: "bar", "aria-hidden": "true" });
    const key = element("div", { class: "key" });
    parts.forEach((part, place) => {
      const piece = element("span");
      piece.style.background = tint(part, place);
      piece.style.flexGrow = part.time / whole;
      const swatch = element("i");
      swatch.style.background = tint(part, place);
      bar.append(piece);
      key.append(element("span", {}, swatch, `${part.name} ${share(part.time, whole)}, ${quantity(part.time, "s")}`));
    });
    byId("shares").append(element("div", { class: "share" }, element("span", { class: "muted", text: name }), bar, key));
  }
}

function fillNotes() {
  const { device, total } = report;
  const withFlops = views.roofline.points.reduce((sum, point) => sum + point.time, 0);
  byId("roofline-note").textContent = !device ? "" :
    `The roofs are ${device.source}. A marker is one kind of call; its area is its share of the predicted time. Click it to list its operators.`;
  byId("moves-note").textContent = !device ? "" : `${share(views.busy - withFlops, views.busy)} of the time: bytes alone count.`;
  const above = [...views.roofline.points, ...views.moves.points].filter((point) => point.above);
  byId("roofline-above").hidden = !above.length;
  byId("roofline-above").textContent = `${count(above.length, "measured point")} above the roof: the roof or a price is wrong. ` +
    above.map((point) => report.operators[point.indices[0]].describe).join("; ");
  byId("memory-note").textContent = `Of the device that holds most; the peak is ${quantity(total.peak_memory_bytes, "B")}.`;
  byId("communication-note").textContent = `${quantity(total.communication_bytes, "B")} received by all devices together.`;
  byId("timeline-note").textContent = "Streams of the busiest device; the others do the same or less. Drag to look closer, double-click to see everything." +
    (views.timeline.some((segment) => segment.stream === "measured") ? " Measured times stand one after the other." : "");
}

function fillTables() {
  byId("communication-table").parentElement.hidden = !views.exchanges.length;
  byId("holders").parentElement.hidden = !report.memory_peak_holders.length;
  const modules = [["module", false], ["operators", true], ["FLOPs", true], ["bytes", true], ["received", true], ["time", true], ["measured", true], ["share", true]];
  byId("modules-table").append(simpleTable(modules, views.module_groups.map((row) => [
    row.name, row.uses.toLocaleString("en"), quantity(row.flops), quantity(row.traffic, "B"), quantity(row.sent, "B"), quantity(row.time, "s"), quantity(row.measured, "s"), share(row.time, views.busy),
  ])));
  const sent = [["axis", false], ["kind", false], ["chosen", false], ["for", false], ["times", true], ["bytes", true], ["time", true]];
  byId("communication-table").append(simpleTable(sent, views.exchanges.map((row) => [
    row.axes, row.kind, row.chosen, row.cause, String(row.times), quantity(row.bytes, "B"), quantity(row.time, "s"),
  ])));
  byId("holders").append(simpleTable(
    [["what", false], ["as", false], ["module", false], ["bytes", true]],
    report.memory_peak_holders.map((row) => [row.what, row.category, moduleText(row), quantity(row.bytes, "B")])));
  const unknown = report.unknown.map((row) => [row.describe, String(row.count)]);
  byId("unknown-list").append(unknown.length
    ? simpleTable([["operator", false], ["times", true]], unknown)
    : element("p", { class: "muted", text: "None: every operator is priced, or free by nature." }));
}

// ---- theme

function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  root.style.colorScheme = root.dataset.theme;
  byId("theme").setAttribute("aria-pressed", String(dark));
  byId("theme").textContent = dark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", dark ? "Switch to the light theme" : "Switch to the dark theme");
}

const system = matchMedia("(prefers-color-scheme: dark)");
setTheme(system.matches);
system.addEventListener("change", () => { setTheme(system.matches); drawAll(); });
byId("theme").addEventListener("click", () => { setTheme(root.dataset.theme !== "dark"); drawAll(); });

fillHead();
fillCards();
fillShares();
fillNotes();
fillTables();
const operators = new OperatorTable(report, operatorColumns(report, views));
drawAll();
for (const [id, title] of [["roofline", "Roofline of the operators"], ["moves", "Operators without FLOPs below the roofs of memory and link"], ["modules", "Time by module"], ["memory", "Memory over time"], ["communication", "Communication by axis and kind"], ["timeline", "Timeline of the streams"]]) {
  byId(`${id}-figure`).setAttribute("role", "figure");
  byId(`${id}-figure`).setAttribute("aria-label", `${title}; the same numbers stand in tables`);
}
byId("apart").addEventListener("change", drawModules);
for (const id of ["roofline", "moves"]) {
  byId(`${id}-figure`).on?.("plotly_click", (event) => {
    const indices = event.points[0]?.customdata;
    if (!indices) return;
    operators.showOnly(indices);
    byId("operators").scrollIntoView();
  });
}
