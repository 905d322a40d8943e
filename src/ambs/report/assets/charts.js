"use strict";
// Draws the curves in #data: figures are found by their data-environment and data-panel. All text goes in as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 236, LEFT = 54, RIGHT = 10, TOP = 10, BOTTOM = 34;
  const hidden = data.map(() => new Set());
  let single = true;

  function node(name, attributes = {}, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
    if (size < 1e-3) return value.toExponential(1).replace(/\.0e/, "e");
    return String(+value.toPrecision(4));
  }

  const colour = (environment, series) => "c" + (environment.groups[series.group].colour % 8);

  // Numbers a person would choose: 1, 2 or 5 times a power of ten.
  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.7);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  }

  function decades(low, high) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first) / 5)), found = [];
    for (let k = first; k <= last; k += every) found.push(10 ** k);
    return found;
  }

  function gridOf(environment, panel) {
    const skip = (environment.x.length - 1) % panel.step;
    return environment.x.filter((_, i) => i >= skip && (i - skip) % panel.step === 0);
  }

  // The range of y, from what is shown.
  function rangeOf(panel, shown) {
    let low = Infinity, high = -Infinity;
    const take = (value) => {
      if (value === null || (panel.log && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const series of shown) {
      for (const part of [series.mean, series.low || [], series.high || []]) part.forEach(take);
      if (single) (series.each || []).forEach((row) => row.forEach(take));
    }
    for (const line of panel.lines) take(line.value);
    if (low > high) return panel.log ? [0.1, 1] : [0, 1];
    if (panel.log) return [low / 1.5, high * 1.5];
    if (panel.least === 0) low = Math.min(low, 0);
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
    const space = (high - low) * 0.05;
    return [panel.least !== null && low >= panel.least && low - space < panel.least ? panel.least : low - space, high + space];
  }

  // "M x y L x y …" through the points that are there; a gap begins a new piece.
  function path(xs, ys, px, py) {
    let d = "", open = false;
    ys.forEach((y, i) => {
      if (y === null) { open = false; return; }
      d += (open ? "L" : "M") + px(xs[i]).toFixed(1) + " " + py(y).toFixed(1);
      open = true;
    });
    return d;
  }

  function bandPath(xs, low, high, px, py) {
    let d = "", from = -1;
    for (let i = 0; i <= xs.length; i++) {
      const there = i < xs.length && low[i] !== null && high[i] !== null;
      if (there && from < 0) from = i;
      if (!there && from >= 0) {
        const points = [];
        for (let k = from; k < i; k++) points.push([xs[k], high[k]]);
        for (let k = i - 1; k >= from; k--) points.push([xs[k], low[k]]);
        d += "M" + points.map(([x, y]) => px(x).toFixed(1) + " " + py(y).toFixed(1)).join("L") + "Z";
        from = -1;
      }
    }
    return d;
  }

  function draw(figure) {
    const number = +figure.dataset.environment, environment = data[number], panel = environment.panels[+figure.dataset.panel];
    const xs = gridOf(environment, panel);
    const width = Math.max(figure.querySelector(".plot").clientWidth, 200);
    const shown = panel.series.filter((series) => !hidden[number].has(series.group));
    const [low, high] = rangeOf(panel, shown), last = xs[xs.length - 1];
    const px = (x) => LEFT + (x / last) * (width - LEFT - RIGHT);
    const scale = panel.log ? Math.log10 : (y) => y, floor = panel.log ? (y) => Math.max(y, low) : (y) => y;
    const py = (y) => TOP + (1 - (scale(floor(y)) - scale(low)) / (scale(high) - scale(low))) * (HEIGHT - TOP - BOTTOM);
    const svg = node("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, tabindex: "0", role: "img",
      "aria-label": panel.title + ": curves over frames; arrow keys move a cursor",
    });
    for (const y of panel.log ? decades(low, high) : ticks(low, high, 4)) {
      svg.append(node("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y) }));
      svg.append(node("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
    }
    for (const x of ticks(0, last, width < 380 ? 3 : 5)) {
      // A label at the very end would stick out.
      const anchor = px(x) > width - RIGHT - 14 ? "end" : "middle";
      svg.append(node("text", { x: anchor === "end" ? width - 2 : px(x), y: HEIGHT - 18, "text-anchor": anchor }, short(x)));
    }
    svg.append(node("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "frames"));
    for (const series of shown) {
      const group = node("g", { class: colour(environment, series), "data-group": series.group });
      if (series.low) group.append(node("path", { class: "band", d: bandPath(xs, series.low, series.high, px, py) }));
      if (single) for (const row of series.each || []) group.append(node("path", { class: "each", d: path(xs, row, px, py) }));
      const mean = node("path", { class: "mean", d: path(xs, series.mean, px, py) });
      if (environment.groups[series.group].colour >= 8) mean.setAttribute("stroke-dasharray", "6 3");
      group.append(mean);
      const there = series.mean.flatMap((y, i) => (y === null ? [] : [i]));
      if (there.length === 1) {
        group.append(node("circle", { class: "lone", cx: px(xs[there[0]]), cy: py(series.mean[there[0]]), r: 3 }));
      }
      svg.append(group);
    }
    for (const line of panel.lines) {
      svg.append(node("line", { class: "reference", x1: LEFT, x2: width - RIGHT, y1: py(line.value), y2: py(line.value) }));
      svg.append(node("text", { class: "reference", x: LEFT + 6, y: py(line.value) - 5 }, line.label));
    }
    const cursor = node("g", { class: "cursors" });
    svg.append(cursor);
    figure.querySelector(".plot").replaceChildren(svg);
    follow(figure, svg, cursor, { environment, panel, shown, xs, px, py, width });
  }

  // A cursor that follows the pointer or the arrow keys, with a tooltip.
  function follow(figure, svg, cursor, chart) {
    const tooltip = figure.querySelector(".tooltip");
    let at = chart.xs.length - 1;
    const hide = () => { tooltip.hidden = true; cursor.replaceChildren(); };
    const show = () => {
      const x = chart.xs[at], lines = [];
      cursor.replaceChildren(node("line", { class: "cursor", x1: chart.px(x), x2: chart.px(x), y1: TOP, y2: HEIGHT - BOTTOM }));
      const head = document.createElement("div");
      head.className = "soft";
      head.textContent = x.toLocaleString("en") + " frames";
      lines.push(head);
      for (const series of chart.shown) {
        const y = series.mean[at];
        if (y === null) continue;
        cursor.append(node("circle", { class: "mark " + colour(chart.environment, series), cx: chart.px(x), cy: chart.py(y), r: 3.5 }));
        lines.push(row(chart, series, at));
      }
      tooltip.replaceChildren(...lines);
      tooltip.hidden = false;
      // Beside the cursor where there is room, else below the curves.
      const plot = figure.querySelector(".plot"), x0 = plot.offsetLeft + chart.px(x), size = tooltip.offsetWidth;
      const left = x0 + 14 + size <= figure.clientWidth - 8 ? x0 + 14 : x0 - 14 - size;
      tooltip.style.left = Math.max(8, left) + "px";
      tooltip.style.top = plot.offsetTop + (left < 8 ? HEIGHT - BOTTOM + 8 : 8) + "px";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * chart.width;
      at = chart.xs.reduce((best, value, i) => (Math.abs(chart.px(value) - x) < Math.abs(chart.px(chart.xs[best]) - x) ? i : best), 0);
      show();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      if (!tooltip.hidden) at = Math.min(chart.xs.length - 1, Math.max(0, at + step));
      show();
    });
  }

  function row(chart, series, at) {
    const made = document.createElement("div"), dot = document.createElement("span");
    dot.className = "dot " + colour(chart.environment, series);
    const value = (y) => short(y);
    const range = series.low && series.low[at] !== null ? ` [${value(series.low[at])}, ${value(series.high[at])}]` : "";
    const seeds = series.seeds[at];
    made.append(dot, `${chart.environment.groups[series.group].label}: ${value(series.mean[at])}${range} · ${seeds} seed${seeds === 1 ? "" : "s"}`);
    return made;
  }

  const visible = (figure) => !figure.closest("details:not([open])");
  const figures = [...document.querySelectorAll("figure.chart")];
  const redraw = (some = figures) => some.filter(visible).forEach(draw);
  for (const button of document.querySelectorAll(".legend button[data-group]")) {
    button.addEventListener("click", () => {
      const number = +button.dataset.environment, group = +button.dataset.group;
      if (!hidden[number].delete(group)) hidden[number].add(group);
      button.setAttribute("aria-pressed", String(!hidden[number].has(group)));
      redraw(figures.filter((figure) => +figure.dataset.environment === number));
    });
  }
  const singles = [...document.querySelectorAll(".legend button.singles")];
  for (const button of singles) {
    button.addEventListener("click", () => {
      single = !single;
      for (const each of singles) each.setAttribute("aria-pressed", String(single));
      redraw();
    });
  }
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => { if (details.open) redraw([...details.querySelectorAll("figure.chart")]); });
  }
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 80);
  });
  redraw();
  document.documentElement.dataset.drawn = "yes";
})();
