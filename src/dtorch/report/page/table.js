// The table of operators: sorted, filtered, and only the rows in sight are in the document, so length costs nothing.

const ROW_HEIGHT = 30;

class OperatorTable {
  // `columns`: {key, heading, width, number, value(operator), text(operator), look: class of its cells}.
  constructor(report, columns) {
    this.report = report;
    this.columns = columns;
    this.sort = { key: "index", direction: 1 };
    this.choices = {};
    this.words = [];
    this.only = null;
    this.selected = null;
    this.haystacks = report.operators.map((operator) => [
      operator.kind, operator.torch_op, operator.describe, moduleText(operator), operator.phase, operator.source,
      ...[...operator.inputs, ...operator.outputs].map(tensorText), operator.known ? "" : "unknown",
    ].join(" ").toLowerCase());
    this.grid = byId("grid");
    this.build();
    this.buildFilters();
    this.update();
  }

  build() {
    this.heads = this.columns.map((column) => {
      const button = element("button", { type: "button", text: column.heading });
      button.addEventListener("click", () => this.sortBy(column));
      return element("th", { scope: "col", class: column.number ? "number" : null, "data-key": column.key }, button);
    });
    this.body = element("tbody");
    const widths = element("colgroup", {}, ...this.columns.map((column) => {
      const made = element("col");
      made.style.width = column.width;
      return made;
    }));
    this.table = element("table", { "aria-label": "Operators" }, widths, element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    this.grid.append(this.table);
    this.grid.addEventListener("scroll", () => this.paint());
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-place]");
      if (row) this.select(Number(row.dataset.place));
    });
    new ResizeObserver(() => this.paint()).observe(this.grid);
  }

  buildFilters() {
    const form = byId("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    byId("filter-text").addEventListener("input", (event) => {
      this.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.update();
    });
    for (const [key, all] of [["kind", "all kinds"], ["phase", "all phases"], ["bound", "any bound"], ["stream", "all streams"]]) {
      const values = [...new Set(this.report.operators.map((operator) => operator[key]))].filter(Boolean).sort();
      if (values.length < 2) continue;
      const choose = element("select", { id: `filter-${key}`, "aria-label": `Show only this ${key}` }, element("option", { value: "", text: all }));
      choose.append(...values.map((value) => element("option", { value, text: value })));
      choose.addEventListener("change", () => {
        this.choices[key] = choose.value;
        this.update();
      });
      form.append(choose);
    }
    this.clear = element("button", { type: "button", text: "Show all", id: "filter-clear", hidden: "" });
    this.clear.addEventListener("click", () => {
      form.reset();
      this.words = [];
      this.choices = {};
      this.only = null;
      this.update();
    });
    form.append(this.clear);
  }

  sortBy(column) {
    const same = this.sort.key === column.key;
    // Numbers are of interest from the top, names and the order of calls from the start.
    const first = column.number && column.key !== "index" ? -1 : 1;
    this.sort = { key: column.key, direction: same ? -this.sort.direction : first };
    this.update();
  }

  update() {
    const { operators } = this.report;
    const chosen = Object.entries(this.choices).filter(([, value]) => value);
    const column = this.columns.find((one) => one.key === this.sort.key);
    this.rows = operators.filter((operator, place) =>
      (!this.only || this.only.has(operator.index)) &&
      chosen.every(([key, value]) => operator[key] === value) &&
      this.words.every((word) => this.haystacks[place].includes(word)));
    const { direction } = this.sort;
    // What has no value stands last in both directions.
    this.rows.sort((left, right) => {
      const a = column.value(left), b = column.value(right);
      if (a === b) return left.index - right.index;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return direction * (a < b ? -1 : 1);
    });
    for (const head of this.heads) {
      if (head.dataset.key !== this.sort.key) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    }
    const time = this.rows.reduce((sum, operator) => sum + (operator.time_s || 0), 0);
    const shown = `${this.rows.length.toLocaleString("en")} of ${count(operators.length, "operator")}`;
    byId("count").textContent = this.report.device ? `${shown}, ${quantity(time, "s")} in sum` : shown;
    this.clear.hidden = this.rows.length === operators.length;
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    this.selected = null;
    byId("detail").replaceChildren();
    this.grid.scrollTop = 0;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW_HEIGHT) - 10);
    const last = Math.min(this.rows.length, first + Math.ceil(this.grid.clientHeight / ROW_HEIGHT) + 20);
    const space = (number) => {
      const row = element("tr", { class: "spacer", "aria-hidden": "true" }, element("td", { colspan: this.columns.length }));
      row.style.height = `${number * ROW_HEIGHT}px`;
      return row;
    };
    const shown = this.rows.slice(first, last).map((operator, offset) => this.row(operator, first + offset));
    this.body.replaceChildren(space(first), ...shown, space(this.rows.length - last));
  }

  row(operator, place) {
    const row = element("tr", { "data-place": place, "aria-rowindex": place + 2, "aria-selected": place === this.selected });
    for (const column of this.columns) {
      const text = column.text(operator);
      const cell = element("td", { class: column.number ? "number" : column.look, title: column.number ? null : text }, element("bdi", { text }));
      if (column.key === "bound" && operator.bound) cell.style.setProperty("--of", `var(--${operator.bound})`);
      row.append(cell);
    }
    return row;
  }

  key(event) {
    const page = Math.floor(this.grid.clientHeight / ROW_HEIGHT) - 1;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target !== this.grid || !(event.key in moves) || !this.rows.length) return;
    event.preventDefault();
    const from = this.selected ?? (moves[event.key] > 0 ? -1 : 0);
    const place = Math.max(0, Math.min(this.rows.length - 1, from + moves[event.key]));
    const top = place * ROW_HEIGHT, head = this.grid.querySelector("thead").offsetHeight;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    const bottom = top + ROW_HEIGHT + head - this.grid.clientHeight;
    if (bottom > this.grid.scrollTop) this.grid.scrollTop = bottom;
    this.select(place);
  }

  select(place) {
    this.selected = place;
    this.paint();
    byId("detail").replaceChildren(operatorDetail(this.rows[place], this.report));
  }

  // Only the operators of these numbers, such as those of a point of the roofline.
  showOnly(indices) {
    this.only = new Set(indices);
    this.update();
    this.select(0);
  }
}

function operatorColumns(report, views) {
  const number = (key, heading, width, unit) => ({
    key, heading, width, number: true, value: (operator) => operator[key],
    // A dash where there is nothing, a question mark where nobody knows.
    text: (operator) => (key === "flops_max_device" && !operator.known ? "?" : quantity(operator[key] || null, unit)),
  });
  const text = (key, heading, width) => ({ key, heading, width, value: (operator) => operator[key] || null, text: (operator) => operator[key] || "-" });
  const columns = [
    { key: "index", heading: "#", width: "3.9rem", number: true, value: (operator) => operator.index, text: (operator) => String(operator.index) },
    text("kind", "operator", "9.5rem"),
    { ...text("module", "module", "auto"), text: moduleText, look: "path" },
    text("phase", "phase", "6rem"),
    number("flops_max_device", "FLOPs", "5.5rem", ""),
    number("traffic_bytes_max_device", "bytes", "5.7rem", "B"),
    number("sent_bytes_max_device", "received", "5.8rem", "B"),
    number("time_s", "time", "5.3rem", "s"),
    { key: "share", heading: "share", width: "4.8rem", number: true, value: (operator) => operator.time_s, text: (operator) => share(operator.time_s || 0, views.busy) },
    { ...text("bound", "bound", "9.2rem"), look: "bound" },
  ];
  if (report.operators.some((operator) => operator.measured_s !== null)) columns.splice(8, 0, number("measured_s", "measured", "6rem", "s"));
  return columns;
}

function operatorDetail(operator, report) {
  const sent = operator.communication;
  const facts = [
    ["operator", `${operator.index}: ${operator.describe}`],
    ["torch operator", operator.torch_op],
    ["module", moduleText(operator)],
    ["called from", operator.source],
    ...operator.inputs.map((tensor, place) => [`input ${place}`, tensorText(tensor)]),
    ...operator.outputs.map((tensor, place) => [`output ${place}`, tensorText(tensor)]),
    ["FLOPs", operator.known ? operator.flops && `${quantity(operator.flops)} in all, ${quantity(operator.flops_max_device)} on the busiest` : "unknown"],
    ["bytes moved", operator.traffic_bytes && `${quantity(operator.traffic_bytes, "B")} in all, ${quantity(operator.traffic_bytes_max_device, "B")} on the busiest`],
    ["communication", sent && `${sent.kind} over ${sent.axes}, ${quantity(operator.sent_bytes, "B")} in all` + (sent.implicit ? `, implicit, for ${sent.cause}` : "")],
    ["time", operator.time_s === null ? null : `${quantity(operator.time_s, "s")} from ${quantity(operator.start_s, "s")} on the ${operator.stream} stream; bound by ${operator.bound || "nothing"}`],
    ["measured", operator.measured_s === null ? null : quantity(operator.measured_s, "s")],
  ];
  const list = element("dl");
  for (const [name, value] of facts) if (value) list.append(element("dt", { text: name }), element("dd", { text: value }));
  return list;
}
