"use strict";
// The trajectory browser: unpacks the rollouts, filters them, lists them and shows the chosen one.
// Texts reach the page as text nodes only, so that nothing a model wrote can become markup.
(() => {
  const PAGE = 200;
  const filters = document.getElementById("filters");
  const list = document.getElementById("list");
  const view = document.getElementById("rollout");
  const count = document.getElementById("count");
  let rollouts = [];
  let found = [];

  const element = (name, kind, ...children) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    node.append(...children);
    return node;
  };

  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("rollouts").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    rollouts = JSON.parse(await new Response(stream).text());
    for (const one of rollouts) {
      const said = one.messages.filter((message) => message.role !== "system");
      const texts = said.map((message) => [message.text, message.reasoning || "", ...(message.queries || [])].join(" "));
      one.searched = [one.question, one.answer, ...one.golden, ...texts].join("\n").toLowerCase();
    }
  }

  function fillFilters() {
    for (const select of filters.querySelectorAll("select")) {
      const values = [...new Set(rollouts.map((one) => one[select.name]))].filter(Boolean);
      const named = select.name === "model" || select.name === "dataset";
      if (!named) values.sort();
      for (const value of values) select.append(new Option(named ? value : value.replaceAll("_", " "), value));
    }
  }

  function filter() {
    const chosen = Object.fromEntries(new FormData(filters));
    const words = chosen.text.toLowerCase().trim();
    found = rollouts.filter(
      (one) =>
        ["model", "dataset", "type", "outcome"].every((name) => !chosen[name] || one[name] === chosen[name]) &&
        (!words || one.searched.includes(words)),
    );
    const correct = found.filter((one) => one.outcome === "correct").length;
    count.textContent = `${found.length} of ${rollouts.length} rollouts, ${correct} of them correct.`;
    list.replaceChildren();
    view.replaceChildren();
    append();
    const first = list.querySelector("button.entry");
    if (first) show(found[0], first);
  }

  function append() {
    const start = list.querySelectorAll("button.entry").length;
    list.append(...found.slice(start, start + PAGE).map(entry));
    if (start + PAGE >= found.length) return;
    const more = element("button", "more", `Show ${Math.min(PAGE, found.length - start - PAGE)} more`);
    const item = element("li", "", more);
    more.type = "button";
    more.onclick = () => {
      item.remove();
      append();
      list.children[start + PAGE].firstChild.focus();
    };
    list.append(item);
  }

  function entry(one) {
    const answer = one.answer || "no answer";
    const about = `${one.model}, ${one.dataset}, F1 ${(one.f1 ?? 0).toFixed(2)}`;
    const button = element(
      "button",
      "entry",
      element("b", "", one.question),
      element("span", `outcome ${one.outcome}`, one.outcome.replaceAll("_", " ")),
      element("span", "given", answer),
      element("small", "", about),
    );
    button.type = "button";
    button.tabIndex = -1; // one stop for the whole list: arrow keys walk through it
    button.onclick = () => {
      show(one, button);
      if (window.matchMedia("(max-width: 52rem)").matches) view.scrollIntoView({ block: "start" });
    };
    return element("li", "", button);
  }

  function show(one, button) {
    for (const current of list.querySelectorAll("[aria-current]")) {
      current.removeAttribute("aria-current");
      current.tabIndex = -1;
    }
    button.setAttribute("aria-current", "true");
    button.tabIndex = 0;
    const conversation = one.messages.map((message) => turn(message, one.facts || []));
    view.replaceChildren(element("h3", "", one.question), summary(one), ...conversation);
    view.scrollTop = 0;
  }

  function summary(one) {
    const lines = element("dl", "summary");
    const line = (name, ...content) => lines.append(element("dt", "", name), element("dd", "", ...content));
    line("answer", one.answer || "none");
    line("right answers", one.golden.join(" | "));
    line("outcome", `${one.outcome.replaceAll("_", " ")}, F1 ${(one.f1 ?? 0).toFixed(2)}${one.error ? `: ${one.error}` : ""}`);
    line("run", `${one.model}, ${one.dataset}, ${one.id}${one.type ? `, ${one.type.replaceAll("_", " ")}` : ""}`);
    const shown = one.messages.filter((message) => message.role === "tool").map((message) => message.text);
    for (const fact of one.facts || []) {
      const seen = shown.some((text) => pattern([fact]).test(text));
      line("gold fact", element("span", seen ? "seen" : "unseen", seen ? "shown" : "never shown"), ` ${fact}`);
    }
    return lines;
  }

  function turn(message, facts) {
    const name = { system: "system prompt", user: "question", assistant: "model", tool: "passages" }[message.role];
    const body = [];
    if (message.reasoning) body.push(element("p", "reasoning", message.reasoning));
    if (message.text) body.push(element("p", "", ...(message.role === "tool" ? marked(message.text, facts) : [message.text])));
    for (const query of message.queries || []) body.push(element("code", "query", query));
    if (message.role === "system") {
      return element("details", "turn system", element("summary", "", name), ...body);
    }
    return element("div", `turn ${message.role}`, element("h4", "", name), ...body);
  }

  const pattern = (facts) =>
    new RegExp(facts.map((fact) => fact.trim().replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+")).join("|"), "g");

  function marked(text, facts) {
    if (!facts.length) return [text];
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(pattern(facts))) {
      if (!match[0]) continue;
      parts.push(text.slice(end, match.index), element("mark", "", match[0]));
      end = match.index + match[0].length;
    }
    return [...parts, text.slice(end)];
  }

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && document.activeElement.closest("li")?.[step]?.firstChild;
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  for (const select of filters.querySelectorAll("select")) select.addEventListener("change", filter);
  filters.elements.text.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());

  unpack().then(
    () => {
      fillFilters();
      filter();
      performance.mark("rollouts ready");
      document.body.dataset.rollouts = String(rollouts.length);
    },
    (error) => {
      count.textContent = `The rollouts cannot be unpacked here: ${error}`;
    },
  );
})();
