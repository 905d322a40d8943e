"use strict";
// The shield's decision rules as ambs.shield.rules has them: integer counts per look, settled in exact arithmetic.
const rules = (() => {
  // What a person meant by a decimal: whole numbers over a common power of ten.
  function scaled(values) {
    const parts = values.map((value) => {
      const [digits, exponent = "0"] = String(value).toLowerCase().split("e");
      const [whole, rest = ""] = digits.split(".");
      return { digits: BigInt(whole + rest), places: rest.length - Number(exponent) };
    });
    const places = Math.max(0, ...parts.map((part) => part.places));
    return { unit: 10n ** BigInt(places), values: parts.map((part) => part.digits * 10n ** BigInt(places - part.places)) };
  }

  // The first k in 0 … last for which a falling condition no longer holds; last + 1 if it always does.
  function firstFailing(last, holds) {
    let low = 0, high = last + 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(middle)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // As `table`, worked out once for each setting of the sliders.
  const known = new Map();
  function rule(settings, level, epsilon) {
    const key = `${level} ${epsilon}`;
    if (!known.has(key)) known.set(key, table(settings, level, epsilon));
    return known.get(key);
  }

  // looks, accept and override counts; or { error } in a sentence where the shield would refuse the settings.
  function table(settings, level, epsilon) {
    const { unit, values } = scaled([level, epsilon, settings.failure_probability, settings.model_error]);
    const [D, E, delta, reserve] = values;
    if (D <= 0n || D >= unit) return { error: "Δ must lie strictly between 0 and 1." };
    if (E <= 0n || E >= unit) return { error: "ε must lie strictly between 0 and 1." };
    if (E > D) return { error: "With ε above Δ no number of safe futures could be accepted: choose ε at most Δ." };
    if (reserve >= E) return { error: "ε must be larger than the part of it that is kept for the model's own error." };
    if (!Object.hasOwn(tables, settings.rule)) return { error: `This page does not know the decision rule ${settings.rule}.` };
    return tables[settings.rule]({ settings, unit, D, E, delta, reserve });
  }

  // By the names of ambs.shield.config.RULES: Δ, ε, δ and what of ε is kept for the model are whole numbers over `unit`.
  const tables = { fixed, sequential };

  function fixed({ settings: { traces }, unit, D, E }) {
    const accept = Number((BigInt(traces) * (D - E)) / unit);
    return { looks: [traces], accept: [accept], override: [accept + 1] };
  }

  function sequential({ settings: { traces, chunk }, unit, D, E, delta, reserve }) {
    const null_ = unit - D + reserve, other = unit - D + E;
    // Wealth after k of m violating traces: (other/null)^(m−k) · ((1−other)/(1−null))^k, as gain/loss.
    const wealth = (m, k) => [
      other ** BigInt(m - k) * (unit - other) ** BigInt(k),
      null_ ** BigInt(m - k) * (unit - null_) ** BigInt(k),
    ];
    const up = Math.log(Number(other) / Number(null_)), down = Math.log(Number(unit - other) / Number(unit - null_));
    const bound = Math.log(Number(delta) / Number(unit));
    // Logarithms settle what is not close; only what may be a tie is worked out in whole numbers, which are long.
    const settled = (m, k, shift, exactly) => {
      const gained = (m - k) * up, lost = k ? k * down : 0, sum = gained + lost + shift;
      if (lost === -Infinity) return false;
      return Math.abs(sum) > 1e-9 + 1e-12 * (Math.abs(gained) + Math.abs(lost)) ? sum > 0 : exactly(...wealth(m, k));
    };
    const enough = (m, k) => settled(m, k, bound, (gain, loss) => gain * delta >= loss * unit);
    const alive = (m, k) => settled(m, k, -bound, (gain, loss) => gain * unit > loss * delta);
    if (!enough(traces, 0)) return { error: `With at most ${traces} futures these settings could never accept, not even if all are safe.` };
    const looks = [];
    for (let look = chunk; look <= traces; look += chunk) looks.push(look);
    return {
      looks,
      accept: looks.map((look) => firstFailing(look, (k) => enough(look, k)) - 1),
      override: looks.map((look) => firstFailing(look, (k) => alive(look, k))),
    };
  }

  // log10 of the wealth, for drawing.
  function logWealth(settings, level, epsilon, m, k) {
    const null_ = 1 - level + settings.model_error, other = 1 - level + epsilon;
    const lose = other >= 1 ? -Infinity : Math.log10((1 - other) / (1 - null_));
    return (m - k) * Math.log10(other / null_) + (k ? k * lose : 0);
  }

  function unpacked(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new Kind(bytes.buffer);
  }

  function traces(data) {
    const given = data.traces;
    if (!given) return null;
    const { most } = given;
    const first = unpacked(given.first, Uint16Array), atom = unpacked(given.atom, Uint8Array);
    const cost = given.cost ? unpacked(given.cost, Float32Array) : null;
    const critic = given.critic ? unpacked(given.critic, Float32Array) : null;
    return {
      most, drawn: given.drawn,
      first: (step, i) => first[step * most + i] - 1,
      atom: (step, i) => atom[step * most + i] - 2,
      cost: (step, i) => (cost ? cost[step * most + i] : 0),
      critic: (step, i) => (critic ? critic[step * most + i] : 0),
      byCost: cost !== null,
    };
  }

  // Whether the stored futures tell anything of a horizon of n steps; a sentence if not.
  function beyond(settings, n) {
    if (n === settings.horizon) return "";
    if (settings.critics !== null) {
      if (n < settings.rolled) return `The critics judged what lies beyond step ${settings.rolled}: nothing is stored of their judgement at step ${n}.`;
      return n > settings.cost_thresholds.length ? `Nothing is stored of more than ${settings.cost_thresholds.length} steps.` : "";
    }
    if (settings.labels === "mean") return `Futures were judged by their expected cost over ${settings.horizon} steps; shorter or longer ones are not stored.`;
    return n > settings.rolled ? `Stored futures end after ${settings.rolled} steps: record behind a longer look ahead (ambs eval --spec) to go farther.` : "";
  }

  // Whether a drawn trace violates within n steps.
  function violates(settings, stored, step, i, n) {
    const first = stored.first(step, i);
    if (n === settings.horizon) return first > 0;
    if (!settings.by_cost) return first > 0 && first <= n;
    const over = stored.cost(step, i) > settings.cost_thresholds[n - 1];
    return settings.labels === "mean" ? over : over || (first > 0 && first <= settings.rolled);
  }

  // Every decision of the episode at other settings: reasons, futures used, violating ones; undecided where data ends.
  function episode(data, stored, { level, epsilon, horizon }) {
    const { settings, steps } = data, codes = data.facts.reasons;
    const missing = beyond(settings, horizon);
    const found = rule(settings, level, epsilon);
    const made = { error: found.error || "", missing, rule: found, reasons: [], used: [], violating: [] };
    if (found.error) return made;
    for (let step = 0; step < steps.count; step++) {
      const was = steps.reason[step];
      let reason = codes.undecided, used = 0, count = 0;
      // A path formula that the state itself satisfies: no setting would have asked for futures.
      const settled = data.facts.path && was === codes.accepted && !steps.used[step];
      if (settled || [codes.already_unsafe, codes.non_finite, codes.latched].includes(was)) reason = was;
      else if (!missing) {
        const drawn = stored.drawn[step];
        reason = codes.not_shown_safe;
        for (let look = 0; look < found.looks.length; look++) {
          if (found.looks[look] > drawn) {
            for (; used < drawn; used++) count += violates(settings, stored, step, used, horizon);
            reason = codes.undecided;
            break;
          }
          for (; used < found.looks[look]; used++) count += violates(settings, stored, step, used, horizon);
          if (count <= found.accept[look]) { reason = codes.accepted; break; }
          if (count >= found.override[look]) { reason = codes.too_risky; break; }
        }
      }
      made.reasons.push(reason);
      made.used.push(used);
      made.violating.push(count);
    }
    return made;
  }

  return { tables, rule, logWealth, traces, violates, beyond, episode };
})();
