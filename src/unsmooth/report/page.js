// Fills the page from its two JSON blocks. Text reaches the document as text nodes only, never as markup.
(() => {
  "use strict";

  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("report-data").textContent);
  const template = byId("chart-spec").textContent;
  const metricSelect = byId("metric");
  const siteSelect = byId("site");
  let drawing = 0;
  let current = null;

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // 0 + value: no minus sign in front of a zero.
  const spoken = (value) => (value === null ? "–" : String(0 + Number(value.toPrecision(4))).replace("-", "−"));
  const at = (column, index) => (column.length === 1 ? column[0] : column[index]);
  const curvesOf = (metric, site) => data.curves.filter((curve) => curve.metric === metric && curve.site === site);
  const hasBand = (row) => row.low !== null && row.high !== null;

  function rowsOf(curve) {
    return curve.layer.map((layer, i) => {
      const row = { scan: data.series[curve.series].name, layer, mean: curve.mean[i], low: curve.low[i], high: curve.high[i] };
      if (!hasBand(row)) row.low = row.high = null;
      row.value = spoken(row.mean);
      row.interval = hasBand(row) ? `${spoken(row.low)} to ${spoken(row.high)}` : "none";
      row.sequences = at(curve.sequences, i);
      row.tokens = at(curve.tokens, i);
      return row;
    });
  }

  // ---- chart

  function specFor(metric, curves, width) {
    const spec = JSON.parse(template);
    const rows = curves.flatMap(rowsOf);
    const chance = data.metrics[metric].chance;
    const names = curves.map((curve) => data.series[curve.series].name);
    // Vega warns about a layer whose field has no number at all, so such layers are left out.
    const empty = { band: !rows.some(hasBand), chance: !chance.length, label: !chance.length };
    spec.layer = spec.layer.filter((layer) => !empty[layer.name]);
    for (const { encoding } of spec.layer) {
      encoding.y.title = data.metrics[metric].name;
      for (const channel of ["color", "strokeDash"]) {
        const legend = encoding[channel] && encoding[channel].legend;
        if (legend) Object.assign(legend, { values: names, labelLimit: Math.max(120, width - 60) });
      }
    }
    spec.width = width;
    spec.datasets = { curves: rows, chance };
    spec.description = `${data.metrics[metric].name} over layers for ${names.join(", ")}`;
    return spec;
  }

  async function draw(metric, curves) {
    const turn = ++drawing;
    root.dataset.ready = "false";
    const host = byId("chart");
    const holder = element("div");
    if (curves.some((curve) => curve.mean.some((value) => value !== null))) {
      const spec = specFor(metric, curves, Math.floor(host.clientWidth));
      // "ast" evaluates Vega's expressions without eval, which the page's security policy forbids.
      const drawn = await vegaEmbed(holder, spec, { actions: false, renderer: "svg", ast: true });
      if (turn !== drawing) return drawn.finalize();
      if (current) current.finalize();
      current = drawn;
    } else {
      if (current) current.finalize();
      current = null;
      holder.append(element("p", "No finite value to draw.", "none"));
    }
    host.replaceChildren(holder);
    root.dataset.ready = "true";
  }

  // ---- words and numbers beside it

  function paperNodes(text) {
    return text.split(/(\d{4}\.\d{4,5})/).map((part, i) => {
      if (i % 2 === 0) return document.createTextNode(part);
      const link = element("a", part);
      link.href = `https://arxiv.org/abs/${part}`;
      link.rel = "noreferrer";
      return link;
    });
  }

  function writeFacts(metric, site) {
    byId("metric-name").textContent = data.metrics[metric].name;
    const facts = [...data.metrics[metric].facts, ...data.sites[site].facts];
    const nodes = facts.filter((fact) => fact.groups.length).map((fact) => {
      const isSite = fact.label === "Site";
      const term = element("dt", isSite ? `Site: ${data.sites[site].name}` : fact.label);
      const said = fact.groups.map(({ text, scans }) => {
        const words = element("dd");
        if (fact.groups.length > 1) words.append(element("span", scans.join(", "), "who"));
        words.append(...(fact.label === "Paper" ? paperNodes(text) : [text]));
        return words;
      });
      return [term, ...said];
    });
    byId("facts").replaceChildren(...nodes.flat());
  }

  // One precision for all figures of a table, as unsmooth.numbers.Precision has it.
  function precisionOf(values) {
    const largest = Math.max(0, ...values.filter((value) => value !== null).map(Math.abs));
    const order = largest ? Math.floor(Math.log10(largest)) : 0;
    const written = (value) => {
      if (order <= -5 || order >= 7) return value.toExponential(2);
      return value.toFixed(order >= 2 ? Math.max(0, 3 - order) : 2 - Math.min(order, -1));
    };
    return (value) => written(Number(written(value)) ? value : 0).replaceAll("-", "−");
  }

  function meanAndHalf(row, say) {
    if (row.mean === null) return "–";
    return hasBand(row) ? `${say(row.mean)} ± ${say((row.high - row.low) / 2)}` : say(row.mean);
  }

  function writeTable(curves) {
    const table = byId("numbers");
    const head = element("tr");
    head.append(element("th", "layer"));
    const cells = new Map();
    const say = precisionOf(curves.flatMap((curve) => curve.mean));
    for (const curve of curves) {
      const { name, colour, dashed } = data.series[curve.series];
      const swatch = element("span", "", dashed ? "swatch dashed" : "swatch");
      swatch.style.borderTopColor = colour;
      const title = element("th", "");
      title.append(swatch, name);
      title.scope = "col";
      head.append(title);
      for (const row of rowsOf(curve)) {
        if (!cells.has(row.layer)) cells.set(row.layer, new Map());
        cells.get(row.layer).set(curve.series, meanAndHalf(row, say));
      }
    }
    table.tHead.replaceChildren(head);
    const layers = [...cells.keys()].sort((a, b) => a - b);
    table.tBodies[0].replaceChildren(...layers.map((layer) => {
      const line = element("tr");
      const title = element("th", layer);
      title.scope = "row";
      line.append(title, ...curves.map((curve) => element("td", cells.get(layer).get(curve.series) ?? "–")));
      return line;
    }));
  }

  function say(text) {
    byId("message").textContent = text;
    byId("message").hidden = !text;
  }

  // ---- choices

  function offerSites(metric) {
    for (const option of siteSelect.options) option.disabled = !curvesOf(metric, Number(option.value)).length;
    const chosen = siteSelect.selectedOptions[0];
    if (!chosen.disabled) return "";
    const next = [...siteSelect.options].find((option) => !option.disabled);
    siteSelect.value = next.value;
    return `${data.metrics[metric].name} was not measured at ${chosen.textContent}; this is ${next.textContent}. `;
  }

  function show() {
    const metric = Number(metricSelect.value);
    const moved = offerSites(metric);
    const site = Number(siteSelect.value);
    const curves = curvesOf(metric, site);
    const present = new Set(curves.map((curve) => curve.series));
    const absent = data.series.filter((_, index) => !present.has(index)).map((one) => one.name);
    say(moved + (absent.length ? `Not measured in: ${absent.join(", ")}.` : ""));
    writeFacts(metric, site);
    writeTable(curves);
    draw(metric, curves).catch((error) => {
      say(`The chart could not be drawn: ${error.message}`);
      console.error(error);
    });
  }

  function fill(select, entries) {
    select.replaceChildren(...entries.map((entry, index) => new Option(entry.name, index)));
    select.addEventListener("change", show);
  }

  // ---- downloads

  function records() {
    return data.curves.flatMap((curve) => rowsOf(curve).map((row) => ({
      scan: row.scan, layer: row.layer, site: data.sites[curve.site].name, metric: data.metrics[curve.metric].name,
      mean: row.mean, ci_low: row.low, ci_high: row.high, sequences: row.sequences, tokens: row.tokens,
    })));
  }

  function csv() {
    const quote = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const rows = records();
    const lines = rows.map((row) => Object.values(row).map((value) => quote(String(value ?? ""))).join(","));
    return [Object.keys(rows[0]).join(","), ...lines, ""].join("\r\n");
  }

  async function fileUrl(kind) {
    if (kind === "csv") return URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    if (kind === "json") return URL.createObjectURL(new Blob([JSON.stringify(records(), null, 1)], { type: "application/json" }));
    return current.view.toImageURL(kind, kind === "png" ? 3 : 1);
  }

  async function download(event) {
    const kind = event.currentTarget.dataset.download;
    const picture = kind === "svg" || kind === "png";
    if (!data.curves.length || (picture && !current)) return;
    const name = picture ? `${metricSelect.selectedOptions[0].text}-${siteSelect.selectedOptions[0].text}` : "scan";
    const link = element("a");
    link.href = await fileUrl(kind);
    link.download = `${name.replace(/[^a-zA-Z0-9_]+/g, "-")}.${kind}`;
    link.click();
  }

  // ---- start

  for (const button of document.querySelectorAll("[data-download]")) button.addEventListener("click", download);
  if (!data.curves.length) {
    say("This scan holds no numbers.");
    metricSelect.disabled = siteSelect.disabled = true;
    root.dataset.ready = "true";
    return;
  }
  fill(metricSelect, data.metrics);
  fill(siteSelect, data.sites);
  show();
  let width = byId("chart").clientWidth;
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (byId("chart").clientWidth !== width) show();
      width = byId("chart").clientWidth;
    }, 150);
  });
})();
