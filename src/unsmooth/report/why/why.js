// Draws the Why part from its JSON block: one explanation at a time, every figure with its choice.
(() => {
  "use strict";

  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("why-data").textContent);
  const articles = [...document.querySelectorAll("article.why")];
  const chooser = byId("explanation");
  const drawn = new Map(); // figure element to its view
  let pending = 0;

  root.dataset.why = "false";
  if (!byId("report-data")) root.dataset.ready = "true";

  // Words that repeat are stored once, and so is a column that several tables share.
  const columns = data.columns.map((column) => (column.words ? column.at.map((place) => column.words[place]) : column));

  function expand(table) {
    const fields = Object.entries(table);
    return columns[fields[0][1]].map((_, i) => Object.fromEntries(fields.map(([name, place]) => [name, columns[place][i]])));
  }

  // A square needs room for its axis beside it, and keeps one unit for both axes.
  function sized(spec, panel, width) {
    if (panel.height === null) {
      spec.width = spec.height = Math.max(160, Math.min(460, width - 90));
      spec.autosize = { type: "pad" };
    } else {
      spec.width = Math.max(width, panel.least);
      spec.height = panel.height;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    return spec;
  }

  function limitLegends(spec, width) {
    for (const { encoding } of spec.layer) {
      for (const channel of ["color", "strokeDash", "shape"]) {
        const legend = encoding[channel] && encoding[channel].legend;
        if (!legend) continue;
        if (width < 620) legend.columns = Math.min(legend.columns, width < 420 ? 1 : 2);
        legend.labelLimit = Math.max(120, Math.floor((width - 60) / legend.columns) - 30);
      }
    }
  }

  function specFor(panel, width) {
    const spec = sized(structuredClone(data.specs[panel.spec]), panel, width);
    limitLegends(spec, Math.min(width, panel.height === null ? 560 : width));
    spec.config = data.config;
    spec.description = `${panel.title}. ${panel.caption}`;
    spec.datasets = Object.fromEntries(Object.entries(panel.tables).map(([name, table]) => [name, expand(table)]));
    return spec;
  }

  function say(text) {
    byId("why-message").textContent = text;
    byId("why-message").hidden = !text;
  }

  async function show(part, figure) {
    const select = figure.querySelector("select");
    const panel = data.parts[part][figure.dataset.figure][select ? Number(select.value) : 0];
    const host = figure.querySelector(".picture");
    const holder = document.createElement("div");
    const turn = (Number(figure.dataset.turn) || 0) + 1;
    figure.dataset.turn = turn;
    pending += 1;
    root.dataset.why = "false";
    try {
      // "ast" evaluates Vega's expressions without eval, which the page's security policy forbids.
      const options = { actions: false, renderer: "svg", ast: true };
      const made = await vegaEmbed(holder, specFor(panel, Math.floor(host.clientWidth)), options);
      if (Number(figure.dataset.turn) !== turn) {
        made.finalize();
      } else {
        if (drawn.has(figure)) drawn.get(figure).finalize();
        drawn.set(figure, made);
        host.replaceChildren(holder);
        figure.querySelector("figcaption").textContent = panel.caption;
      }
    } catch (error) {
      say(`A picture could not be drawn: ${error.message}`);
      console.error(error);
    }
    pending -= 1;
    if (!pending) root.dataset.why = "true";
  }

  const chosen = () => (chooser ? Number(chooser.value) : 0);

  function showAll(redraw) {
    articles.forEach((article, index) => { article.hidden = index !== chosen(); });
    const waiting = [...articles[chosen()].querySelectorAll("figure")].filter((one) => redraw || !drawn.has(one));
    for (const figure of waiting) show(chosen(), figure);
    if (!waiting.length && !pending) root.dataset.why = "true";
  }

  articles.forEach((article, part) => {
    for (const figure of article.querySelectorAll("figure")) {
      const select = figure.querySelector("select");
      if (select) select.addEventListener("change", () => show(part, figure));
    }
  });
  if (chooser) chooser.addEventListener("change", () => showAll(true)); // the window may have changed meanwhile
  showAll(false);
  let width = root.clientWidth;
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (root.clientWidth !== width) showAll(true);
      width = root.clientWidth;
    }, 150);
  });
})();
