// Numbers with units, and elements. Text from the user's code enters only as text, never as markup.

const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

// Three digits and a decimal prefix, below one only for seconds; a dash for null. As dtorch.report.quantity.
function quantity(value, unit = "") {
  if (value === null || value === undefined) return "-";
  for (const [scale, prefix] of unit === "s" ? UNITS : UNITS.slice(0, 7)) {
    if (Math.abs(value) >= scale * 0.9995) return `${digits(value / scale)} ${prefix}${unit}`.trim();
  }
  return `${digits(value)} ${unit}`.trim();
}

function digits(value) {
  return Math.abs(value) < 999.5 ? String(Number(value.toPrecision(3))) : value.toFixed(0);
}

function share(part, whole) {
  return whole ? `${(100 * part / whole).toFixed(1)} %` : "-";
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// Plotly reads a few tags in its texts; text from the user's code must stay text there too.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function byId(id) {
  return document.getElementById(id);
}

// An element with attributes (`text` is its text) and children.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A table of rows of texts; columns are [heading, is a number].
function simpleTable(columns, rows) {
  const kind = (number) => (number ? "number" : null);
  const head = element("tr", {}, ...columns.map(([text, number]) => element("th", { text, scope: "col", class: kind(number) })));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((text, place) => element("td", { text, class: kind(columns[place][1]) }))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// A tensor in words: bfloat16[8192, 4096] on Shard(0), Replicate().
function tensorText(tensor) {
  if (!tensor) return "-";
  return `${tensor.dtype}[${tensor.shape.join(", ")}] on ${tensor.placements.join(", ")}`;
}

function moduleText(operator) {
  return operator.module || "(no module)";
}
