"use strict";
// The trajectory browser: unpacks the rollouts, filters them, lists them and shows the chosen one.
// Texts reach the page as text nodes only, so that nothing a model wrote can become markup.
(() => {
  const PAGE = 200;
  const FIELDS = ["model", "dataset", "type", "outcome"];
  const FAILED = "any failure";
  const filters = document.getElementById("filters");
  const list = document.getElementById("list");
  const view = document.getElementById("rollout");
  const count = document.getElementById("count");
  let rollouts = [];
  let found = [];
  let shown = -1; // position in `found` of the rollout that is open

  const element = (name, kind, ...children) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    node.append(...children);
    return node;
  };
  const spaced = (name) => name.replaceAll("_", " ");
  const failed = (one) => one.outcome !== "correct" && one.outcome !== "wrong";

  async function unpack() {
    const raw = atob(document.getElementById("rollouts").textContent);
    const packed = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const content = JSON.parse(await new Response(stream).text());
    rollouts = content.rollouts;
    for (const message of rollouts.flatMap((one) => one.messages)) {
      if (message.role === "tool") message.text = message.text.map((position) => content.passages[position]).join("\n\n");
    }
  }

  // What the text search looks in; made when it is first asked for.
  function searched(one) {
    if (one.searched === undefined) {
      const said = one.messages.filter((message) => message.role !== "system");
      const texts = said.map((message) => [message.text, message.reasoning || "", ...(message.queries || [])].join(" "));
      one.searched = [one.question, one.answer, ...one.golden, ...texts].join("\n").toLowerCase();
    }
    return one.searched;
  }

  // Filters, and the address that keeps them.

  function fillFilters() {
    for (const name of FIELDS) {
      const select = filters.elements[name];
      let values = [...new Set(rollouts.map((one) => one[name]))].filter(Boolean);
      if (name === "type") values.sort();
      if (name === "outcome") {
        const kinds = [...new Set(rollouts.filter(failed).map((one) => one.outcome))].sort();
        values = ["correct", "wrong", ...(kinds.length ? [FAILED] : []), ...kinds];
      }
      for (const value of values) select.append(new Option(name === "type" || name === "outcome" ? spaced(value) : value, value));
      select.closest("label").hidden = !values.length;
    }
  }

  const asked = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

  function applyAddress() {
    const address = asked();
    for (const name of [...FIELDS, "text"]) filters.elements[name].value = address.get(name) || "";
    filter(address.get("id"));
    if (![...address].length) return;
    document.getElementById("trajectories").scrollIntoView();
    list.querySelector("[aria-current]")?.focus({ preventScroll: true });
  }

  // The filters; of a rollout that the reader opened its run as well, for every run answers the same questions.
  function keepAddress(opened) {
    const kept = Object.fromEntries(new FormData(filters));
    if (opened) Object.assign(kept, { model: opened.model, dataset: opened.dataset, id: opened.id });
    const address = new URLSearchParams(Object.entries(kept).filter(([, value]) => value));
    history.replaceState(null, "", `#${address}`);
  }

  function matches(one, chosen, words) {
    const of = (name) => !chosen[name] || one[name] === chosen[name] || (chosen[name] === FAILED && failed(one));
    return FIELDS.every(of) && (!words || searched(one).includes(words));
  }

  function filter(id) {
    const chosen = Object.fromEntries(new FormData(filters));
    const words = chosen.text.toLowerCase().trim();
    found = rollouts.filter((one) => matches(one, chosen, words));
    const correct = found.filter((one) => one.outcome === "correct").length;
    count.textContent = `${found.length} of ${rollouts.length} rollouts, ${correct} of them correct.`;
    list.replaceChildren();
    view.replaceChildren(...(found.length ? [] : [element("p", "note", "No rollout is like that.")]));
    shown = -1;
    append();
    const position = id ? found.findIndex((one) => one.id === id) : 0;
    if (found.length) show(Math.max(position, 0));
  }

  // The list.

  const buttons = () => list.querySelectorAll("button.entry");

  function append() {
    const start = buttons().length;
    list.append(...found.slice(start, start + PAGE).map((one, position) => entry(one, start + position)));
    if (start + PAGE >= found.length) return;
    const more = element("button", "more", `Show ${Math.min(PAGE, found.length - start - PAGE)} more`);
    const item = element("li", "", more);
    more.type = "button";
    more.onclick = () => {
      item.remove();
      append();
      buttons()[start + PAGE].focus();
    };
    list.append(item);
  }

  function entry(one, position) {
    const about = `${one.model}, ${one.dataset}, F1 ${(one.f1 ?? 0).toFixed(2)}`;
    const button = element(
      "button",
      "entry",
      element("b", "", one.question),
      element("span", "given", one.answer || "no answer"),
      element("span", `outcome ${one.outcome}`, spaced(one.outcome)),
      element("small", "", about),
    );
    button.type = "button";
    button.tabIndex = -1; // one stop for the whole list: arrow keys walk through it
    button.onclick = () => {
      show(position);
      keepAddress(found[position]);
      if (window.matchMedia("(max-width: 52rem)").matches) view.scrollIntoView({ block: "start" });
    };
    return element("li", "", button);
  }

  // The chosen rollout.

  function show(position) {
    shown = position;
    while (buttons().length <= position) {
      list.lastElementChild.remove();
      append();
    }
    for (const current of list.querySelectorAll("[aria-current]")) {
      current.removeAttribute("aria-current");
      current.tabIndex = -1;
    }
    const button = buttons()[position];
    button.setAttribute("aria-current", "true");
    button.tabIndex = 0;
    list.scrollTop = button.offsetTop - list.offsetTop - list.clientHeight / 3;
    const one = found[position];
    const gold = { pattern: pattern(one.facts || []), titles: (one.titles || []).flat() };
    const conversation = one.messages.map((message) => turn(message, gold));
    view.replaceChildren(steps(), element("h3", "", one.question), summary(one), ...conversation);
    view.scrollTop = 0;
  }

  function steps() {
    const bar = element("div", "steps");
    const step = (text, by) => {
      const button = element("button", "", text);
      button.type = "button";
      button.disabled = !found[shown + by];
      button.onclick = () => {
        show(shown + by);
        keepAddress(found[shown]);
        const again = [...view.querySelectorAll(".steps button")].find((other) => other.textContent === text);
        (again.disabled ? view : again).focus();
      };
      bar.append(button);
    };
    step("Previous", -1);
    step("Next", 1);
    bar.append(element("span", "", `${shown + 1} of ${found.length}`));
    return bar;
  }

  function summary(one) {
    const lines = element("dl", "summary");
    const line = (name, ...content) => lines.append(element("dt", "", name), element("dd", "", ...content));
    const ended = element("span", `outcome ${one.outcome}`, spaced(one.outcome));
    line("outcome", ended, ` F1 ${(one.f1 ?? 0).toFixed(2)}${one.error ? `: ${one.error}` : ""}`);
    line("answer", one.answer || "none");
    line(one.golden.length > 1 ? "right answers" : "right answer", one.golden.join(" | "));
    line("run", `${one.model}, ${one.dataset}, ${one.id}${one.type ? `, ${spaced(one.type)}` : ""}`);
    const texts = one.messages.filter((message) => message.role === "tool").map((message) => message.text);
    const passages = texts.flatMap(split);
    const evidence = (what, seen, text) =>
      line(what, element("span", seen ? "seen" : "unseen", seen ? "retrieved" : "not retrieved"), ` ${text}`);
    for (const fact of one.facts || []) {
      const sought = pattern([fact]);
      evidence("gold fact", texts.some((text) => text.search(sought) >= 0), fact);
    }
    for (const names of one.titles || []) evidence("gold document", passages.some((one) => names.includes(one.title)), names[0]);
    return lines;
  }

  // Facts are compared with passages white space apart.
  const pattern = (facts) => facts.length && new RegExp(facts.map(loose).join("|"), "gu");
  const loose = (fact) => [...fact.replace(/\s+/g, "")].map(escaped).join("\\s*");
  const escaped = (character) => character.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");

  const NAMES = { system: "system prompt", user: "question", assistant: "model", tool: "passages" };

  function turn(message, gold) {
    if (message.role === "system") return folded("system prompt", message.text, "turn system");
    const body = [];
    if (message.reasoning) body.push(folded("reasoning", message.reasoning, "reasoning"));
    if (message.role === "tool") body.push(...split(message.text).map((one) => passage(one, gold)));
    else if (message.role === "assistant") body.push(...said(message.text));
    else body.push(element("p", "", message.text));
    const tagged = message.text.includes("<search>"); // the tag protocol: its queries stand in the text already
    for (const query of tagged ? [] : message.queries || []) body.push(search(query));
    return element("div", `turn ${message.role}`, element("h4", "", NAMES[message.role]), ...body);
  }

  const folded = (title, text, kind) =>
    element("details", kind, element("summary", "", title), element("p", "", text));
  const search = (query) => element("p", "query", element("span", "", "searches for "), element("b", "", query));

  // What a model wrote: thoughts folded, searches and answers of the tag protocol as what they are.
  function said(text) {
    const opened = text.includes("</think>") && !text.includes("<think>") ? `<think>${text}` : text;
    const body = [];
    for (const part of opened.split(/(<(?:think|search|answer)>[\s\S]*?<\/(?:think|search|answer)>)/)) {
      const [, tag, inner] = part.match(/^<(think|search|answer)>([\s\S]*)<\/\1>$/) || [];
      if (tag === "think") body.push(folded("reasoning", inner.trim(), "reasoning"));
      else if (tag === "search") body.push(search(inner.trim()));
      else if (tag === "answer") body.push(element("p", "answer", element("span", "", "answers "), element("b", "", inner.trim())));
      else if (part.trim()) body.push(element("p", "", part.trim()));
    }
    return body;
  }

  // A tool message as its passages; text that is none (a notice, an error) is one without a title.
  function split(text) {
    const bare = text.replace(/^\s*<information>|<\/information>\s*$/g, "");
    return bare.split(/^(?=\[\d+\] |Doc \d+\(Title: )/m).filter((part) => part.trim()).map((part) => {
      const [, head, title, rest] = part.match(/^(\[\d+\]) (.*)\n?([\s\S]*)$/) || part.match(/^(Doc \d+)\(Title: (.*?)\) ([\s\S]*)$/) || [];
      return head ? { head: `${head} ${title}`, title, text: part.trim() } : { title: "", text: part.trim() };
    });
  }

  function passage(one, gold) {
    const body = marked(one.text, gold.pattern);
    const holds = body.length > 1 || gold.titles.includes(one.title);
    const node = element("p", holds ? "passage gold" : "passage", ...body);
    if (holds) node.prepend(element("span", "tag", "gold evidence"), " ");
    return node;
  }

  function marked(text, sought) {
    if (!sought) return [text];
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(sought)) {
      parts.push(text.slice(end, match.index), element("mark", "", match[0]));
      end = match.index + match[0].length;
    }
    return parts.length ? [...parts, text.slice(end)] : [text];
  }

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && document.activeElement.closest("li")?.[step]?.firstChild;
    if (!next) return;
    event.preventDefault();
    next.focus({ preventScroll: true });
    if (next.classList.contains("entry")) next.click();
  });
  const refilter = () => {
    filter();
    keepAddress();
  };
  for (const name of FIELDS) filters.elements[name].addEventListener("change", refilter);
  filters.elements.text.addEventListener("input", refilter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(refilter));

  unpack().then(
    () => {
      fillFilters();
      applyAddress();
      window.addEventListener("hashchange", () => location.hash.includes("=") && applyAddress());
      performance.mark("rollouts ready");
      document.body.dataset.rollouts = String(rollouts.length);
    },
    (error) => {
      count.textContent = `The rollouts cannot be unpacked here: ${error}`;
    },
  );
})();
