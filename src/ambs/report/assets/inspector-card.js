"use strict";
// The why card of one step, and the film strips below it.
const card = (() => {
  const { html, node, bars, walk, view, things, robot, canvas } = drawing;
  const percent = (p) => `${+(100 * p).toFixed(1)} %`;
  const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

  // The safety that an accepted action needs, and what was asked for where calibration put another Δ in force.
  const wanted = ({ safety_level: level, asked }) => (asked === null ? `asked for: ${percent(1 - level)}` : `in force: ${percent(1 - level)} (asked for: ${percent(1 - asked)})`);

  function action(data, values) {
    const names = data.facts.actions;
    if (data.facts.discrete) return names[values] || `action ${values}`;
    return [].concat(values).map((value, i) => `${names[i] ? names[i] + " " : ""}${value === null ? "not finite" : value.toFixed(2)}`).join(", ");
  }

  const atomName = (data, code) => (code === -2 ? "a critic's estimate" : code >= 0 ? data.facts.trace_atoms[code] || `label ${code}` : "no single label");

  // What the futures that the rule used show, at a horizon of n steps.
  function evidence(data, stored, step, used, n) {
    const firsts = new Map(), atoms = new Map(), steps = [];
    let expected = 0, added = 0;
    for (let i = 0; i < used; i++) {
      if (stored.byCost) { expected += stored.cost(step, i); added += stored.critic(step, i); }
      if (!rules.violates(data.settings, stored, step, i, n)) continue;
      const first = stored.first(step, i), atom = stored.atom(step, i);
      firsts.set(first, (firsts.get(first) || 0) + 1);
      atoms.set(atom, (atoms.get(atom) || 0) + 1);
      steps.push(first);
    }
    steps.sort((a, b) => a - b);
    return { firsts, atoms, steps, expected, added };
  }

  function verdict(data, step) {
    const code = data.steps.reason[step], codes = data.facts.reasons, { psi, path } = data.facts, used = data.steps.used[step];
    const broken = path ? `do not satisfy ${path}` : `break ${psi} within ${plural(data.settings.horizon, "step")}`;
    const counted = `${data.steps.violating[step]} of ${used} imagined futures ${broken}`;
    switch (code) {
      case codes.accepted: return ["accepted", used ? `${counted}; that is few enough.` : path ? `The state itself satisfies ${path}; no future was imagined.` : "No future had to be imagined."];
      case codes.too_risky: return ["overridden: too risky", `${counted}; that is too many.`];
      case codes.not_shown_safe: return ["overridden: not shown safe", `${counted}; all futures are drawn, and the evidence does not suffice.`];
      case codes.deadline: return ["overridden: out of time", `${counted}; time was up before the evidence sufficed.`];
      case codes.already_unsafe: return ["overridden: already unsafe", `The state itself breaks ${path || psi}; no future was imagined.`];
      case codes.latched: return ["overridden: the backup policy stays", "The backup policy took over a few steps ago and stays in control; no future was imagined."];
      case codes.non_finite: return ["overridden: not to be trusted", "A number that is not finite took part; nothing it says can be trusted."];
      default: return ["undecided", counted];
    }
  }

  // The rule's bounds in words, at the look where it stopped.
  function bounds(found, used) {
    const look = found.looks.indexOf(used);
    if (look < 0) return "";
    const accept = found.accept[look] < 0 ? "cannot accept yet" : `accepts up to ${found.accept[look]} violating`;
    const last = look === found.looks.length - 1;
    if (last) return `After ${used} futures, the last, the rule ${accept} and overrides otherwise.`;
    return `After ${used} futures the rule ${accept} and overrides from ${found.override[look]} on; in between it draws more.`;
  }

  function fact(name, ...content) {
    return html("div", { class: "fact" }, html("dt", {}, name), html("dd", {}, ...content));
  }

  function why(place, data, stored, current, chosen, step) {
    if (!data.facts.shield) {
      const told = data.steps.broken[step] ? `${data.facts.psi} broke in this step.` : `${data.facts.psi} held in this step.`;
      place.replaceChildren(html("h2", {}, `Step ${step}: no shield`), html("p", {}, told), html("dl", {}, fact("executed", action(data, data.steps.action[step]))));
      return;
    }
    const [title, sentence] = verdict(data, step), overridden = data.steps.overridden[step];
    const recorded = rules.rule(data.settings, data.settings.safety_level, data.settings.approximation_error);
    const used = data.steps.used[step], shown = evidence(data, stored, step, used, data.settings.horizon);
    const parts = [html("h2", { class: overridden ? "bad" : "good" }, html("a", { href: `#step=${step}`, title: "the address of this step" }, `Step ${step}`), ` ${title}`), html("p", { class: "lead" }, sentence)];
    if (shown.steps.length) {
      const named = [...shown.atoms].sort((a, b) => b[1] - a[1]).map(([code, count]) => `${atomName(data, code)} (${count})`).join(", ");
      const middle = shown.steps[Math.floor((shown.steps.length - 1) / 2)];
      parts.push(html("p", {}, `Broken by: ${named}; first after ${plural(shown.steps[0], "step")}, half of them by step ${middle}. `, recorded.error ? "" : bounds(recorded, used)));
    } else if (used && !recorded.error) parts.push(html("p", {}, bounds(recorded, used)));
    const facts = html("dl", {});
    facts.append(fact("proposed", action(data, data.steps.proposed[step])));
    facts.append(fact("executed", action(data, data.steps.action[step]), overridden ? html("span", { class: "tag" }, "backup policy") : null));
    if (used) {
      const [low, high] = data.steps.interval[step];
      facts.append(fact("estimated safety p̃", html("strong", {}, percent(data.steps.p_safe[step])), ` [${percent(low)}, ${percent(high)}]; ${wanted(data.settings)}`));
    }
    const truth = data.truth.find((one) => one.step === step);
    if (truth) facts.append(fact("true safety", html("strong", {}, percent(truth.safe / truth.futures)), ` [${percent(truth.low)}, ${percent(truth.high)}], by ${truth.futures} futures in the real world with the same policy`));
    facts.append(...came(data, step));
    const took = data.steps.milliseconds[step];
    facts.append(fact("decision took", took === null ? "not measured (compiling)" : `${took.toFixed(1)} ms${data.facts.together > 1 ? ` for ${data.facts.together} environments together` : ""}`));
    parts.push(facts);
    if (used) parts.push(charts(data, stored, shown, recorded, step, used));
    parts.push(otherwise(data, current, chosen, step));
    place.replaceChildren(...parts.filter(Boolean));
  }

  // What happened then, with the shield and without.
  function came(data, step) {
    const n = data.settings.horizon, after = data.steps.broken.slice(step, step + n), first = after.indexOf(1);
    const held = first < 0 ? `${data.facts.psi} held for ${plural(after.length, "step")}` : `${data.facts.psi} broke after ${plural(first + 1, "step")}`;
    const { path } = data.facts, lost = data.steps.lost;
    const really = !lost ? held : lost[step] < 0 ? `${path} was satisfied` : `${path} was not satisfied: lost ${lost[step] ? `after ${plural(lost[step], "step")}` : "in the state itself"}`;
    const found = [fact("what really happened", really)];
    const twin = data.twins.find((one) => one.step === step);
    if (twin) {
      const without = twin.violation ? `would have broken after ${plural(twin.violation, "step")}` : `would have held for ${plural(twin.taken, "step")}`;
      const satisfied = twin.violation ? `would have been lost after ${plural(twin.violation, "step")}` : "would have been satisfied";
      found.push(fact("without the shield", path ? `${path} ${satisfied}` : `${data.facts.psi} ${without}`, html("span", { class: twin.violation ? "tag good" : "tag warn" }, twin.violation ? "rightly overridden" : "false alarm")));
    } else if (data.steps.overridden[step]) found.push(fact("without the shield", "not tried from here"));
    return found;
  }

  function charts(data, stored, shown, recorded, step, used) {
    const rolled = data.settings.rolled, values = [];
    for (let k = 1; k <= rolled; k++) values.push({ name: String(k), value: shown.firsts.get(k) || 0, kind: "bad" });
    if (data.settings.critics !== null) values.push({ name: "critic", value: shown.firsts.get(rolled + 1) || 0, kind: "warn" });
    const made = [html("figure", {}, html("figcaption", {}, "first violating step of the futures"), bars(values, "histogram of first violating steps", "steps ahead"))];
    if (!recorded.error) made.push(html("figure", {}, html("figcaption", {}, recorded.looks.length > 1 ? "evidence for safety (wealth), look by look" : "violating futures counted"), rulePath(data, stored, recorded, step, used)));
    const box = html("div", { class: "charts" }, ...made);
    if (!stored.byCost) return box;
    const told = `Mean discounted cost of a future: ${(shown.expected / used).toPrecision(3)}` + (data.settings.critics !== null ? `, of which critics added ${(shown.added / used).toPrecision(3)}` : "");
    return html("div", {}, box, html("p", { class: "soft" }, `${told}; above ${data.settings.cost_thresholds[data.settings.horizon - 1].toPrecision(3)} a future counts as violating.`));
  }

  function rulePath(data, stored, recorded, step, used) {
    const { settings } = data, points = [[0, 0]];
    let count = 0, at = 0;
    for (const look of recorded.looks.filter((one) => one <= used)) {
      for (; at < look; at++) count += stored.first(step, at) > 0;
      points.push([look, recorded.looks.length > 1 ? rules.logWealth(settings, settings.safety_level, settings.approximation_error, look, count) : -count]);
    }
    if (recorded.looks.length === 1) {
      const most = recorded.accept[0];
      return walk(points, { value: -most, name: `accept: at most ${most}` }, { value: -most - 1, name: `override: from ${most + 1}` }, used, "violating futures against the count allowed");
    }
    const bound = -Math.log10(settings.failure_probability);
    return walk(points, { value: bound, name: `accept at ${+(1 / settings.failure_probability).toPrecision(3)}` }, { value: -bound, name: `override at ${settings.failure_probability}` }, used, "wealth of the test against its bounds");
  }

  function otherwise(data, current, chosen, step) {
    const same = chosen.level === data.settings.safety_level && chosen.epsilon === data.settings.approximation_error && chosen.horizon === data.settings.horizon;
    if (same) return null;
    let told = "it cannot be said from what is stored what would have been decided";
    if (current.error) told = "the shield would refuse these settings";
    else if (current.reasons[step] === data.facts.reasons.accepted) told = `accepted (${current.violating[step]} of ${current.used[step]} violate)`;
    else if (current.reasons[step] !== data.facts.reasons.undecided) told = `overridden (${current.violating[step]} of ${current.used[step]} violate)`;
    return html("p", { class: "what-if" }, html("strong", {}, "With the sliders as they are: "), told + ".");
  }

  // --- film strips ---

  function strips(section, note, place, data, scene, step) {
    const found = data.futures.find((one) => one.step === step);
    section.hidden = !data.facts.shield;
    if (!found) {
      const none = data.steps.overridden && data.steps.overridden[step];
      note.textContent = none ? (data.steps.used[step] ? "No futures are stored for this override." : "No future was imagined for this decision.") : "Futures are stored for overrides and for the riskiest of the accepted steps; this is neither.";
      const last = data.futures.map((one) => one.step);
      place.replaceChildren(...(last.length ? [html("p", { class: "soft" }, "They are stored at step ", ...last.flatMap((at, i) => [i ? ", " : "", html("button", { type: "button", class: "link", "data-step": at }, String(at))]), ".")] : []));
      return;
    }
    const breaking = found.worst.filter((one) => one.first > 0).length;
    note.textContent = `The ${plural(found.worst.length, "worst future")} that the model imagined at step ${step} if the proposed action were executed${breaking ? "" : " (none of them breaks the formula)"}, and what came of it. Numbers are the model's label probabilities; ${counted(data)}${scene.places(step, found) ? " Dashed: where things really are." : scene.own(found) ? " The robot is in the middle and looks up." : ""}`;
    const rows = found.worst.map((one, rank) => strip(
      one.first > data.settings.rolled ? `worst ${rank + 1}: only a critic expects a violation` : one.first ? `worst ${rank + 1}: breaks at step ${one.first}` : `worst ${rank + 1}: stays safe`,
      one.shown.map((at, i) => cell(data, at, picture(data, scene, step, found, one, at, i), probabilities(data, one.labels[at - 1]), at === one.first)),
      "imagined",
    ));
    const wanted = found.worst.length ? [...new Set(found.worst.flatMap((one) => one.shown))].sort((a, b) => a - b).slice(0, 8) : [];
    rows.push(strip("what really happened" + (data.steps.overridden[step] ? " (the backup policy acted)" : ""), wanted.filter((at) => step + at <= data.steps.count).map((at) => real(data, scene, step, at)), "real"));
    const twin = data.twins.find((one) => one.step === step);
    if (twin) rows.push(strip(twin.violation ? `without the shield: broke at step ${twin.violation}` : "without the shield: nothing broke", (twin.shown || wanted).filter((at) => at <= twin.taken).map((at, i) => twinCell(data, scene, step, twin, at, i)), "real"));
    place.classList.toggle("wide", data.wide);
    place.replaceChildren(...rows);
  }

  // From when on a label probability counts.
  function counted(data) {
    if (data.settings.labels === "sample") return "each is drawn as a coin; red ones are likelier than not.";
    if (data.settings.labels === "mean") return "they count as expected costs; red ones are likelier than not.";
    return `a label counts as true, in red, from ${data.facts.named.trace_atoms.map((i) => `${+(data.facts.thresholds[i] ?? 0.5).toPrecision(3)} (${data.facts.trace_atoms[i]})`).join(", ")} on.`;
  }

  const strip = (title, cells, kind) => html("div", { class: `strip ${kind}` }, html("h3", {}, title), html("div", { class: "cells" }, ...cells));

  const cell = (data, at, shown, labels, broke) => html("figure", { class: broke ? "broke" : "" }, shown, html("figcaption", {}, html("div", {}, `step ${at}`), ...labels));

  function probabilities(data, values) {
    return data.facts.named.trace_atoms.map((i) => {
      const p = values[i] ?? null;
      const hot = p !== null && p >= (data.settings.labels === "mode" ? data.facts.thresholds[i] ?? 0.5 : 0.5);
      return html("div", { class: hot ? "label hot" : "label" }, `${data.facts.trace_atoms[i] || i} ${p === null ? "?" : p > 0 && p < 0.005 ? p.toPrecision(1) : p.toFixed(2)}`);
    });
  }

  const met = (data, flags) => data.facts.named.atoms.map((i) => html("div", { class: flags[i] ? "label hot" : "label" }, `${data.facts.atoms[i]} ${flags[i] ? "yes" : "no"}`));

  function sprite(strip, i, count) {
    const made = html("div", { class: "picture" });
    made.style.backgroundImage = `url(${strip})`;
    made.style.backgroundSize = `${100 * count}% 100%`;
    made.style.backgroundPosition = count > 1 ? `${(100 * i) / (count - 1)}% 0` : "0 0";
    return made;
  }

  const SMALL = 110;
  // Around where the robot is now; all there is if it is imagined to come farther, and of a grid.
  function near(data, scene, step) {
    const { extent, square } = data.map, at = scene.robot(step);
    if (square || !at || at[0] === null) return extent;
    const found = data.futures.find((one) => one.step === step), half = (extent[1] - extent[0]) / 4;
    const places = found ? found.worst.flatMap((one) => (one.robot ? one.shown.map((k) => one.robot[k - 1]) : [])) : [];
    const far = Math.max(0, ...places.filter((place) => place[0] !== null).map(([x, y]) => Math.max(Math.abs(x - at[0]), Math.abs(y - at[1]))));
    if (far > half) return extent;
    return [at[0] - half, at[0] + half, at[1] - half, at[1] + half];
  }

  function picture(data, scene, step, found, one, at, i) {
    if (one.strip) return sprite(one.strip, i, one.shown.length);
    if (!one.robot || !data.map) return html("div", { class: "picture none" }, "no picture");
    const own = scene.own(found), seen = view(own ? found.extent : near(data, scene, step), SMALL);
    const truth = own ? [] : things(scene.items(step), data.facts, seen, data.map.square, true);
    return canvas(SMALL, `imagined state after ${at} steps`, ...truth, ...things(one.items[i], data.facts, seen, data.map.square), ...robot(one.robot[at - 1], seen, 5, "imagined"));
  }

  function real(data, scene, step, at) {
    const then = step + at, flags = data.steps.met[then - 1];
    const broke = data.steps.broken[then - 1];
    const last = Math.min(then, data.steps.count - 1);
    let shown = html("div", { class: "picture none" }, "no picture");
    if (data.pictures.length) shown = html("img", { class: "picture", src: data.pictures[last], alt: `real state after ${at} steps` });
    else if (data.map) shown = drawn(data, scene, step, last, scene.robot(last));
    return cell(data, at, shown, met(data, flags), broke);
  }

  function twinCell(data, scene, step, twin, at, i) {
    let shown = html("div", { class: "picture none" }, "no picture");
    if (twin.strip) shown = sprite(twin.strip, i, twin.shown.length);
    else if (twin.robot && data.map) shown = drawn(data, scene, step, step, twin.robot[at - 1]);
    return cell(data, at, shown, met(data, twin.labels[at - 1]), at === twin.violation);
  }

  function drawn(data, scene, step, when, place) {
    const found = data.futures.find((one) => one.step === step);
    if (found && scene.own(found) && place && place[2] !== null) return around(data, scene.items(when), place, found.extent);
    const seen = view(near(data, scene, step), SMALL);
    return canvas(SMALL, "real state", ...things(scene.items(when), data.facts, seen, data.map.square), ...robot(place, seen, 5));
  }

  // As the robot has it: itself in the middle, looking up.
  function around(data, items, place, extent) {
    const seen = view(extent, SMALL), turn = Math.PI / 2 - place[2], cos = Math.cos(turn), sin = Math.sin(turn);
    const turned = items.map(([kind, x, y, r]) => {
      const dx = x - place[0], dy = y - place[1];
      return [kind, cos * dx - sin * dy, sin * dx + cos * dy, r];
    });
    return canvas(SMALL, "real state, as the robot has it", ...things(turned, data.facts, seen, false), ...robot([0, 0, Math.PI / 2], seen, 5));
  }

  return { why, strips, plural };
})();
