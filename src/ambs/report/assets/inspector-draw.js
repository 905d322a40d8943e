"use strict";
// Drawing: the timeline, maps, small charts and film strips. All text goes in as text.
const drawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function node(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function html(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") made.className = value;
      else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }

  const text = (x, y, words, anchor = "start", kind = "") => node("text", { x, y, "text-anchor": anchor, class: kind }, words);

  // --- the timeline ---

  const TIME = { height: 200, left: 64, right: 10, top: 10, rows: 62 };

  function timeline(place, data, current, settings) {
    const width = Math.max(place.clientWidth, 260), { left, right, top, rows } = TIME, shield = data.facts.shield;
    const height = shield ? TIME.height : rows;
    const count = data.steps.count, plot = height - rows - top;
    const px = (step) => left + ((step + 0.5) / count) * (width - left - right);
    const py = (p) => top + (1 - p) * plot;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "estimated safety over the episode; drag to move" });
    if (shield) {
      for (const p of [0, 0.5, 1]) {
        svg.append(node("line", { class: "axis", x1: left, x2: width - right, y1: py(p), y2: py(p) }), text(left - 6, py(p) + 4, String(p), "end"));
      }
      svg.append(...bands(data, px, py), estimates(data, current, px, py));
      const asked = 1 - settings.level;
      svg.append(node("line", { class: "threshold", x1: left, x2: width - right, y1: py(asked), y2: py(asked) }));
      for (const one of data.truth) {
        svg.append(node("circle", { class: "truth", cx: px(one.step), cy: py(one.safe / one.futures), r: 3 }));
      }
    }
    const wide = Math.max(2, (width - left - right) / count - 0.5);
    const row = (y, name, kind, there) => {
      svg.append(text(left - 6, y + 9, name, "end"), node("line", { class: "axis", x1: left, x2: width - right, y1: y + 5, y2: y + 5 }));
      let marks = "";
      for (let step = 0; step < count; step++) if (there(step)) marks += `M${(px(step) - wide / 2).toFixed(1)} ${y}h${wide.toFixed(1)}v10h${(-wide).toFixed(1)}z`;
      svg.append(node("path", { class: kind, d: marks }));
    };
    const base = height - rows + 12;
    if (shield) {
      const accepted = data.facts.reasons.accepted, undecided = data.facts.reasons.undecided;
      row(base, "overrides", "override", (step) => data.steps.overridden[step]);
      row(base + 16, "what if", "would", (step) => current.reasons.length && ![accepted, undecided].includes(current.reasons[step]));
    }
    if (shield) row(base + 16, "", "unknown", (step) => current.reasons[step] === data.facts.reasons.undecided);
    row(base + 32, "violations", "broken", (step) => data.steps.broken[step]);
    const cursor = node("line", { class: "cursor", y1: top - 6, y2: height - 4 });
    svg.append(cursor);
    place.replaceChildren(svg);
    return {
      move: (step) => { cursor.setAttribute("x1", px(step)); cursor.setAttribute("x2", px(step)); },
      at: (x) => {
        const box = svg.getBoundingClientRect();
        const share = (((x - box.left) / box.width) * width - left) / (width - left - right);
        return Math.min(count - 1, Math.max(0, Math.floor(share * count)));
      },
      svg,
    };
  }

  // Of the interval as recorded: one closed piece for each stretch of decisions with traces.
  function bands(data, px, py) {
    const pieces = [];
    let from = -1;
    for (let step = 0; step <= data.steps.count; step++) {
      const there = step < data.steps.count && data.steps.used[step] > 0;
      if (there && from < 0) from = step;
      if (!there && from >= 0) {
        const upper = [], lower = [];
        for (let k = from; k < step; k++) {
          upper.push(`${px(k).toFixed(1)} ${py(data.steps.interval[k][1]).toFixed(1)}`);
          lower.unshift(`${px(k).toFixed(1)} ${py(data.steps.interval[k][0]).toFixed(1)}`);
        }
        pieces.push(node("path", { class: "band", d: `M${upper.concat(lower).join("L")}Z` }));
        from = -1;
      }
    }
    return pieces;
  }

  function estimates(data, current, px, py) {
    let d = "", open = false;
    for (let step = 0; step < data.steps.count; step++) {
      const used = current.used[step] || 0;
      if (!used) { open = false; continue; }
      d += `${open ? "L" : "M"}${px(step).toFixed(1)} ${py(1 - current.violating[step] / used).toFixed(1)}`;
      open = true;
    }
    return node("path", { class: "estimate", d });
  }

  // --- maps ---

  // A view of a map: `extent` [x0, x1, y0, y1] onto a square of `size` pixels, y upwards.
  function view(extent, size) {
    const scale = size / Math.max(extent[1] - extent[0], extent[3] - extent[2]);
    return { x: (x) => (x - extent[0]) * scale, y: (y) => size - (y - extent[2]) * scale, scale, size };
  }

  // `kinds` by number, and as `looks` those that inspector.css does not know: { kinds, looks }, as the page's facts have them.
  function things(items, { kinds, looks }, seen, square, faint = false) {
    return (items || []).filter((item) => item[0] >= 0).map(([kind, x, y, r]) => {
      const look = looks[kinds[kind]] || { square: kinds[kind] === "vase" };
      const style = look.colour && !faint ? { style: `fill: ${look.colour}` } : {};
      const name = { class: `thing ${String(kinds[kind]).replace(/[^a-z]/g, "")}${faint ? " faint" : ""}`, ...style };
      if (!square && !look.square) return node("circle", { ...name, cx: seen.x(x), cy: seen.y(y), r: r * seen.scale });
      return node("rect", { ...name, x: seen.x(x - r), y: seen.y(y + r), width: 2 * r * seen.scale, height: 2 * r * seen.scale });
    });
  }

  function robot(place, seen, size = 7, kind = "") {
    if (!place || place[0] === null || place[1] === null) return [];
    const x = seen.x(place[0]), y = seen.y(place[1]);
    const made = [node("circle", { class: `robot ${kind}`, cx: x, cy: y, r: size })];
    if (place[2] !== null && place[2] !== undefined) {
      const ahead = 2.2 * size;
      made.push(node("line", { class: `heading ${kind}`, x1: x, y1: y, x2: x + ahead * Math.cos(place[2]), y2: y - ahead * Math.sin(place[2]) }));
    }
    return made;
  }

  function path(places, seen, kind) {
    const points = places.filter((place) => place && place[0] !== null && place[1] !== null);
    const d = points.map((place, i) => `${i ? "L" : "M"}${seen.x(place[0]).toFixed(1)} ${seen.y(place[1]).toFixed(1)}`).join("");
    return node("path", { class: kind, d });
  }

  const canvas = (size, label, ...children) =>
    node("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label }, node("rect", { class: "floor", width: size, height: size }), ...children);

  // --- small charts ---

  // Bars [{name, value, kind}], their names below.
  function bars(values, label, unit) {
    const width = 300, height = 104, base = 70, most = Math.max(1, ...values.map((bar) => bar.value));
    const step = width / values.length, every = Math.ceil(values.length / 15), end = values.length - 1;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    values.forEach((bar, i) => {
      const tall = (bar.value / most) * 52;
      svg.append(node("rect", { class: `bar ${bar.kind || ""}`, x: i * step + step * 0.12, width: step * 0.76, y: base - tall, height: tall }));
      if (bar.value && step > 14) svg.append(text((i + 0.5) * step, base - tall - 3, String(bar.value), "middle"));
      if (i === end || (i % every === 0 && end - i >= every)) svg.append(text((i + 0.5) * step, base + 13, bar.name, "middle"));
    });
    svg.append(node("line", { class: "axis", x1: 0, x2: width, y1: base, y2: base }), text(width, height - 4, unit, "end"));
    return svg;
  }

  // A path of points [[x, y]] between an upper and a lower bound {value, name}.
  function walk(points, upper, lower, xs, label) {
    const width = 300, height = 120, top = 16, base = 96, left = 4, right = 4;
    const all = points.map((point) => point[1]).filter(Number.isFinite).concat(upper.value, lower.value);
    const high = Math.max(...all), low = Math.min(...all), last = Math.max(xs, 1), span = high - low || 1;
    const px = (x) => left + (x / last) * (width - left - right);
    const py = (y) => (Number.isFinite(y) ? top + ((high - y) / span) * (base - top) : base);
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    // Their names at opposite ends: the bounds may lie close together.
    for (const [bound, kind] of [[upper, "accept"], [lower, "refuse"]]) {
      svg.append(node("line", { class: `bound ${kind}`, x1: left, x2: width - right, y1: py(bound.value), y2: py(bound.value) }));
      svg.append(kind === "accept" ? text(left, py(bound.value) - 4, bound.name, "start", kind) : text(width - right, py(bound.value) - 4, bound.name, "end", kind));
    }
    svg.append(node("path", { class: "walk", d: points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("") }));
    for (const [x, y] of points.slice(1)) svg.append(node("circle", { class: "look", cx: px(x), cy: py(y), r: 3.5 }));
    svg.append(text(left, height - 4, "0"), text(width - right, height - 4, `${last} futures`, "end"));
    return svg;
  }

  return { node, html, timeline, view, things, robot, path, canvas, bars, walk };
})();
