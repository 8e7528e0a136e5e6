// Draws the boards of a training from the page's JSON block. Text reaches the document as text nodes only.
(() => {
  "use strict";

  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("training-data").textContent);
  const boards = [...document.querySelectorAll("[data-board]")];
  const timeSelect = byId("time");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // figure element to its view
  const MOST_LINES = 40; // of a table of numbers
  let pending = 0;

  root.dataset.ready = boards.length ? "false" : "true";

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  const spoken = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))).replace("-", "−") : value ?? "–");
  const time = () => (timeSelect ? timeSelect.value : data.time);

  // Words that repeat are stored once, and so is a column that several tables share.
  const columns = data.columns.map((column) => (column.words ? column.at.map((place) => column.words[place]) : column));

  function expand(table) {
    const fields = Object.entries(table);
    return columns[fields[0][1]].map((_, i) => Object.fromEntries(fields.map(([name, place]) => [name, columns[place][i]])));
  }

  // ---- pictures

  function panelOf(board, figure) {
    const picked = (name) => Number(board.querySelector(`[data-pick=${name}]`)?.value ?? 0);
    const { panels, places } = data.boards[board.dataset.board];
    const place = places[figure.dataset.subject === "" ? picked("subject") : Number(figure.dataset.subject)][picked("choice")];
    return place === null ? null : panels[place];
  }

  function fitLegends(encoding, width) {
    for (const channel of ["color", "strokeDash"]) {
      const legend = encoding[channel] && encoding[channel].legend;
      if (!legend) continue;
      if (legend.gradientLength) legend.gradientLength = Math.min(260, Math.max(120, width - 80));
      const longest = Math.max(0, ...(encoding[channel].scale.domain ?? []).map((name) => String(name).length));
      if (legend.columns) legend.columns = Math.max(1, Math.min(legend.columns, Math.floor((width - 60) / (longest * 7 + 50))));
      legend.labelLimit = Math.max(110, Math.floor((width - 60) / (legend.columns ?? 1)) - 40);
    }
  }

  function fitTime(encoding, width) {
    if (!encoding.x || !["step", "epoch"].includes(encoding.x.field)) return;
    encoding.x.field = encoding.x.title = time();
    encoding.x.axis.tickCount = Math.max(3, Math.min(10, Math.floor(width / 80)));
  }

  function specFor(panel, width) {
    const spec = structuredClone(data.specs[panel.spec]);
    for (const { encoding } of spec.layer) {
      fitLegends(encoding, width);
      fitTime(encoding, width);
    }
    spec.width = width;
    spec.height = panel.height;
    spec.autosize = { type: "fit-x", contains: "padding" };
    spec.config = { ...data.config, range: data.ramps[dark.matches ? "dark" : "light"] };
    spec.description = `${panel.title}. ${panel.caption}`;
    spec.datasets = Object.fromEntries(Object.entries(panel.tables).map(([name, table]) => [name, expand(table)]));
    return spec;
  }

  function say(text) {
    byId("message").textContent = text;
    byId("message").hidden = !text;
  }

  function place(figure, made, holder) {
    if (drawn.has(figure)) drawn.get(figure).finalize();
    drawn.delete(figure);
    if (made) drawn.set(figure, made);
    figure.querySelector(".picture").replaceChildren(holder);
  }

  async function show(board, figure) {
    const panel = panelOf(board, figure);
    const host = figure.querySelector(".picture");
    const turn = (Number(figure.dataset.turn) || 0) + 1;
    figure.dataset.turn = turn;
    figure.querySelector("figcaption").textContent = panel ? panel.caption : "";
    figure.querySelector(".numbers").hidden = !panel;
    writeNumbers(board, figure, panel);
    if (!panel) return place(figure, null, element("p", "Not measured in this run.", "none"));
    const holder = element("div");
    // "ast" evaluates Vega's expressions without eval, which the page's security policy forbids.
    const options = { actions: false, renderer: "svg", ast: true };
    const made = await vegaEmbed(holder, specFor(panel, Math.floor(host.clientWidth)), options);
    if (Number(figure.dataset.turn) !== turn) return made.finalize();
    host.classList.toggle("heat", "cells" in panel.tables);
    return place(figure, made, holder);
  }

  // ---- the same as numbers

  function evenly(items) {
    if (items.length <= MOST_LINES) return items;
    return Array.from({ length: MOST_LINES }, (_, i) => items[Math.round((i * (items.length - 1)) / (MOST_LINES - 1))]);
  }

  // Lines over time, or layers over measurements: { heads, lines } with a cell for each head.
  function pivoted(board, panel) {
    const [row, column, ...values] = data.boards[board.dataset.board].pivot;
    const side = ["step", "epoch"].includes(row) ? time() : row;
    const found = Object.entries(panel.tables).filter(([name]) => !["band", "zero"].includes(name)).flatMap(([, table]) => expand(table));
    const cells = new Map();
    const heads = new Set(column ? [] : values);
    for (const one of found) {
      if (!cells.has(one[side])) cells.set(one[side], new Map());
      if (!column) for (const name of heads) cells.get(one[side]).set(name, one[name]);
      else {
        const head = column === "moment" && found.some((other) => other.line !== one.line) ? `${one.line}, ${one.moment}` : one[column];
        heads.add(head);
        cells.get(one[side]).set(head, one[values[0]]);
      }
    }
    return { side, heads: [...heads], lines: [...cells].sort(([a], [b]) => a - b) };
  }

  function writeNumbers(board, figure, panel) {
    const details = figure.querySelector(".numbers");
    const table = details.querySelector("table");
    table.replaceChildren();
    if (!panel || !details.open) return;
    const { side, heads, lines } = pivoted(board, panel);
    const shown = evenly(lines);
    const cell = (tag, text, scope) => Object.assign(element(tag, text), scope ? { scope } : {});
    const line = (cells) => { const made = element("tr"); made.append(...cells); return made; };
    const head = element("thead");
    head.append(line([cell("th", side, "col"), ...heads.map((name) => cell("th", name, "col"))]));
    const body = element("tbody");
    body.append(...shown.map(([name, cells]) => line([cell("th", spoken(name), "row"), ...heads.map((one) => cell("td", spoken(cells.get(one))))])));
    table.append(head, body);
    if (shown.length < lines.length) table.prepend(element("caption", `${shown.length} of ${lines.length} points, evenly chosen`));
  }

  // ---- choices

  function writeReading(board) {
    const choice = Number(board.querySelector("[data-pick=choice]")?.value ?? 0);
    board.querySelector(".lead").textContent = data.boards[board.dataset.board].readings[choice];
  }

  async function showAll(chosen) {
    chosen.forEach(writeReading);
    pending += 1;
    root.dataset.ready = "false";
    try {
      await Promise.all(chosen.flatMap((board) => [...board.querySelectorAll("figure")].map((figure) => show(board, figure))));
    } catch (error) {
      say(`A picture could not be drawn: ${error.message}`);
      console.error(error);
    }
    pending -= 1;
    if (!pending) root.dataset.ready = "true";
  }

  function pick(select) {
    const group = select.dataset.group;
    const alike = boards.filter((board) => {
      const other = group && board.querySelector(`[data-group="${group}"]`);
      if (!other || other.textContent !== select.textContent) return board.contains(select);
      other.value = select.value;
      return true;
    });
    showAll(alike);
  }

  for (const board of boards) {
    for (const select of board.querySelectorAll("[data-pick]")) select.addEventListener("change", () => pick(select));
    for (const figure of board.querySelectorAll("figure")) {
      figure.querySelector(".numbers").addEventListener("toggle", () => writeNumbers(board, figure, panelOf(board, figure)));
    }
  }
  if (timeSelect) timeSelect.addEventListener("change", () => showAll(boards));
  dark.addEventListener("change", () => showAll(boards));
  showAll(boards);
  let width = root.clientWidth;
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (root.clientWidth !== width) showAll(boards);
      width = root.clientWidth;
    }, 150);
  });
})();
