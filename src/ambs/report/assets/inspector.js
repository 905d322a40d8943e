"use strict";
// State and controls: one step is shown, one setting of the sliders is tried.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const stored = rules.traces(data), count = data.steps.count;
  const at = (id) => document.getElementById(id);
  const { node, view, things, robot, path, canvas } = drawing;
  const recorded = { level: data.settings.safety_level, epsilon: data.settings.approximation_error, horizon: data.settings.horizon };
  const state = { step: 0, playing: 0, ...recorded };
  let line = null, current = decide();

  // --- the scene at a step; what has not moved is told once ---

  const known = [];
  if (data.map) data.map.items.forEach((items, step) => known.push(items || known[step - 1]));
  const scene = {
    items: (step) => known[step],
    robot: (step) => (data.map ? data.map.robot[step] : null),
    // Whether imagined places are in the robot's own frame.
    own: (found) => found.worst.every((one) => one.robot && one.robot.every((place) => place[0] === 0 && place[1] === 0)),
  };

  scene.places = (step, found) => data.map && found.worst.some((one) => one.robot && !one.strip) && !scene.own(found);

  function decide() {
    if (!data.facts.shield || !stored) return { reasons: [], used: [], violating: [], error: "", missing: "" };
    return rules.episode(data, stored, state);
  }

  // --- drawing ---

  function drawMap(step) {
    at("map-figure").hidden = !data.map;
    if (!data.map) return;
    const size = 420, seen = view(data.map.extent, size), n = data.settings.horizon;
    const made = things(scene.items(step), data.facts, seen, data.map.square);
    const notes = [...legend(step), "grey: the way so far"];
    made.push(path(data.map.robot.slice(0, step + 1), seen, "way"));
    const marks = [];
    for (let k = 0; k <= step; k++) {
      if (data.steps.broken[k]) marks.push([k, "mark broken"]);
      else if (data.facts.shield && data.steps.overridden[k]) marks.push([k, "mark override"]);
    }
    if (marks.some(([, kind]) => kind === "mark override")) notes.push("orange dots: overridden");
    if (marks.some(([, kind]) => kind === "mark broken")) notes.push("red dots: the formula broke on the way there");
    for (const [k, kind] of marks) {
      const place = data.map.robot[kind === "mark broken" ? Math.min(k + 1, count - 1) : k];
      if (place[0] !== null) made.push(node("circle", { class: kind, cx: seen.x(place[0]), cy: seen.y(place[1]), r: 3 }));
    }
    const found = data.futures.find((one) => one.step === step), here = scene.robot(step);
    if (found && found.worst.some((one) => one.robot) && !scene.own(found)) {
      for (const one of found.worst) if (one.robot) made.push(path([here, ...one.robot.slice(0, one.first || one.robot.length)], seen, one.first ? "future bad" : "future"));
      notes.push("red: imagined futures that break the formula");
    }
    const twin = data.twins.find((one) => one.step === step);
    if (twin && twin.robot) {
      made.push(path([here, ...twin.robot], seen, "twin"));
      notes.push("orange: without the shield");
    }
    made.push(path(data.map.robot.slice(step, step + n + 1), seen, "next"), ...robot(here, seen));
    notes.push(`thick line: what really happened in the next ${n} steps`);
    at("map").replaceChildren(canvas(size, `map at step ${step}`, ...made));
    at("map-note").textContent = notes.join(" · ");
  }

  // What the shapes on the map are; the colours are those of inspector.css.
  const COLOURS = { hazard: "blue", goal: "green", vase: "teal", wall: "grey" };
  function legend(step) {
    const kinds = new Set((scene.items(step) || []).filter((item) => item[0] >= 0).map((item) => data.facts.kinds[item[0]]));
    return [...kinds].map((kind) => `${COLOURS[kind] || (data.facts.looks[kind] || { colour: "brown" }).colour}: ${kind}`);
  }

  function drawCamera(step) {
    at("camera-figure").hidden = !data.pictures.length;
    if (data.pictures.length) at("camera").src = data.pictures[step];
  }

  function drawTimeline() {
    const notes = ["blue: estimated safety p̃ with its interval", `dashed: ${data.settings.asked === null ? "asked for" : "in force"}, ${+(1 - state.level).toFixed(4)}`];
    if (data.truth.length) notes.push("green rings: true safety");
    at("timeline-note").textContent = data.facts.shield ? notes.join(" · ") : "";
    line = drawing.timeline(at("timeline"), data, current, state);
    line.move(state.step);
  }

  function show(step) {
    state.step = Math.min(count - 1, Math.max(0, step));
    at("scrub").value = state.step;
    at("scrub").setAttribute("aria-valuetext", `step ${state.step} of ${count}`);
    if (line) line.move(state.step);
    drawMap(state.step);
    drawCamera(state.step);
    card.why(at("why"), data, stored, current, state, state.step);
    card.strips(at("strips-section"), at("strips-note"), at("strips"), data, scene, state.step);
    document.documentElement.dataset.step = state.step;
  }

  // --- sliders ---

  function whatIf() {
    const place = at("what-if");
    if (!place) return;
    for (const name of ["level", "epsilon", "horizon"]) at(`${name}-value`).textContent = String(Number(state[name].toFixed(3)));
    const codes = data.facts.reasons, did = data.steps.overridden.reduce((sum, one) => sum + one, 0);
    const lines = [];
    if (current.error) lines.push(current.error);
    else if (current.missing) lines.push(current.missing);
    else {
      const undecided = current.reasons.filter((code) => code === codes.undecided).length;
      const would = current.reasons.filter((code) => code !== codes.accepted && code !== codes.undecided).length;
      const changed = current.reasons.filter((code, step) => code !== codes.undecided && (code !== codes.accepted) !== Boolean(data.steps.overridden[step])).length;
      const otherwise = `${card.plural(changed, "decision")} would have come out otherwise`;
      if (undecided) {
        lines.push(`${card.plural(would, "override")} among the ${count - undecided} decisions that the stored futures settle; ${otherwise}.`);
        lines.push(`For the other ${undecided} (grey in the timeline) they do not suffice: the recorded rule had stopped drawing before this one would. All futures are stored of overrides and of the riskiest accepted steps only.`);
      } else lines.push(`${card.plural(would, "override")} instead of ${did}; ${otherwise}.`);
      lines.push("What a changed decision would have led to later is not foreseen here: each is judged in the state that was really reached.");
    }
    place.replaceChildren(...lines.map((line, i) => drawing.html("p", { class: i === 0 ? "lead" : "soft" }, line)));
    place.dataset.overrides = current.error || current.missing ? "" : String(current.reasons.filter((code) => code !== codes.accepted && code !== codes.undecided).length);
  }

  let waiting = 0;
  function retry() {
    current = decide();
    whatIf();
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { drawTimeline(); show(state.step); });
  }

  for (const name of ["level", "epsilon", "horizon"]) {
    if (at(name)) at(name).addEventListener("input", () => { state[name] = Number(at(name).value); retry(); });
  }
  if (at("reset")) at("reset").addEventListener("click", () => {
    Object.assign(state, recorded);
    for (const name of ["level", "epsilon", "horizon"]) at(name).value = recorded[name];
    retry();
  });

  // --- moving ---

  function next(steps, from, back = false) {
    const sorted = [...new Set(steps)].sort((a, b) => a - b);
    const found = back ? sorted.filter((step) => step < from).pop() : sorted.find((step) => step > from);
    if (found !== undefined) show(found);
    else if (sorted.length) show(back ? sorted[sorted.length - 1] : sorted[0]);
  }
  const where = (flags) => (flags || []).flatMap((flag, step) => (flag ? [step] : []));
  const overrides = data.facts.shield ? where(data.steps.overridden) : [], broken = where(data.steps.broken), audited = data.audit.map((entry) => entry.step);

  function play(on) {
    clearInterval(state.playing);
    state.playing = 0;
    if (on) {
      if (state.step === count - 1) show(0);
      state.playing = setInterval(() => { if (state.step >= count - 1) play(false); else show(state.step + 1); }, 1000 / Number(at("speed").value));
    }
    at("play").textContent = on ? "❚❚ pause" : "▶ play";
  }

  const moves = {
    "previous-override": () => next(overrides, state.step, true), "next-override": () => next(overrides, state.step),
    "next-violation": () => next(broken, state.step), "next-audit": () => next(audited, state.step),
    back: () => show(state.step - 1), forward: () => show(state.step + 1), play: () => play(!state.playing),
  };
  for (const [id, move] of Object.entries(moves)) at(id).addEventListener("click", move);
  at("previous-override").disabled = at("next-override").disabled = !overrides.length;
  at("next-violation").disabled = !broken.length;
  at("next-audit").disabled = !audited.length;
  at("speed").addEventListener("change", () => { if (state.playing) play(true); });
  at("scrub").max = count - 1;
  at("scrub").addEventListener("input", () => show(Number(at("scrub").value)));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-step]");
    if (!link || link === document.documentElement) return;
    show(Number(link.dataset.step));
    at("timeline").scrollIntoView({ block: "start" });
  });
  let dragging = false;
  at("timeline").addEventListener("pointerdown", (event) => { dragging = true; show(line.at(event.clientX)); event.preventDefault(); });
  window.addEventListener("pointermove", (event) => { if (dragging) show(line.at(event.clientX)); });
  for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => { dragging = false; });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target, range = target.matches && target.matches("input[type=range]:not(#scrub), select");
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => show(state.step - far), ArrowRight: () => show(state.step + far), Home: () => show(0), End: () => show(count - 1),
      " ": moves.play, o: moves["next-override"], O: moves["previous-override"], v: moves["next-violation"], a: moves["next-audit"],
    };
    if (!keys[event.key] || (range && event.key.length > 1)) return;
    if (event.key === " " && target.matches && target.matches("button, summary, a")) return;
    event.preventDefault();
    keys[event.key]();
  });
  let width = window.innerWidth, later = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(later);
    later = setTimeout(drawTimeline, 80);
  });

  if (!data.map && !data.pictures.length) document.querySelector(".stage").classList.add("alone");
  whatIf();
  drawTimeline();
  // The first thing to look at: what the address asks for (#step=57), an override (one that was looked into), a violation, or the riskiest step.
  const risky = data.futures.map((one) => one.step);
  const asked = () => { const found = /^#(?:step=)?(\d{1,7})$/.exec(location.hash); return found ? Number(found[1]) : null; };
  show(asked() ?? data.first ?? broken[0] ?? risky[0] ?? 0);
  window.addEventListener("hashchange", () => { if (asked() !== null) show(asked()); });
  window.inspector = { decide: (chosen) => rules.episode(data, stored, chosen) };
  document.documentElement.dataset.drawn = "yes";
})();
