// What a page can do beside being read: copy, filter, zoom, light an edge, go to a finding. All of it is there without.
"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// An element with its attributes and what is in it; text is only ever set as text.
function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function button(text, label, pressed) {
  const made = element("button", { type: "button", "aria-label": label, title: label }, text);
  made.addEventListener("click", pressed);
  return made;
}

// What is folded opens, and all that it is folded in.
function unfold(part) {
  for (let around = part; around; around = around.parentElement) if (around.tagName === "DETAILS") around.open = true;
}

// --- Copy: a button beside each name, place, edit and fingerprint that one takes elsewhere.

const taken = (code) => code.dataset.copy || code.textContent.trim();

async function copy(code) {
  try {
    await navigator.clipboard.writeText(taken(code));
    return true;
  } catch { // not over https, or not allowed: marked, so that Ctrl+C takes it
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
}

function addCopyButtons() {
  for (const code of all("code[data-copy]")) {
    const label = `Copy ${taken(code).split("\n")[0].slice(0, 60)}`;
    const made = button("copy", label, async () => {
      made.textContent = (await copy(code)) ? "copied" : "press Ctrl+C";
      setTimeout(() => { made.textContent = "copy"; }, 1500);
    });
    made.className = "copy";
    const head = code.closest("pre") && code.closest("figure")?.querySelector("figcaption");
    if (head) head.append(made); else code.after(made);
  }
}

// --- Filter: findings by rank, rule and text, and the rows and figures of ranks with them.

const ranksOf = (part) => new Set((part.dataset.ranks ?? "").split(" ").filter(Boolean));
const share = (some, others) => [...some].some((one) => others.has(one));
const holds = (part, text) => part.textContent.toLowerCase().includes(text);

// "3, 5-7" as {3, 5, 6, 7}; null where no rank is named.
function ranksNamed(text) {
  const named = new Set();
  for (const [, first, last] of text.matchAll(/(\d+)(?:\s*-\s*(\d+))?/g)) {
    const end = Math.min(Number(last ?? first), Number(first) + 100000);
    for (let rank = Number(first); rank <= end; rank += 1) named.add(String(rank));
  }
  return named.size ? named : null;
}

function rowsOf(finding) { // of the list of findings, which lead to it
  const links = all(".findings-list a[href^='#']").filter((link) => link.hash === `#${finding.id}`);
  return links.map((link) => link.closest("tr, li")).filter(Boolean);
}

function addFilter() {
  const findings = all("article.finding");
  const rows = all("[data-ranks]").filter((part) => !part.matches("article.finding, article.finding *, .findings-list *"));
  const rules = [...new Set(findings.map((finding) => finding.dataset.rule))].sort();
  const seen = findings.filter((finding) => !finding.parentElement.closest("details"));
  if (seen.length < 2 && rows.length < 3) return; // nothing to choose from
  const text = element("input", { type: "search", name: "text", size: 16 });
  const rule = element("select", { name: "rule" }, element("option", { value: "" }, "all rules"));
  rule.append(...rules.map((name) => element("option", { value: name }, name)));
  const rank = element("input", { type: "text", name: "rank", size: 8, placeholder: "0, 4-7" });
  const shownCount = element("output", {});
  const form = element("form", { class: "filter", role: "search", "aria-label": "Filter findings and ranks" },
    element("label", {}, "text ", text), element("label", {}, "rule ", rule), element("label", {}, "rank ", rank),
    element("button", { type: "reset" }, "clear"), shownCount);

  function filter() {
    const wanted = text.value.trim().toLowerCase();
    const ranks = ranksNamed(rank.value);
    const shown = findings.filter((finding) => (!rule.value || finding.dataset.rule === rule.value)
      && (!ranks || share(ranks, ranksOf(finding))) && holds(finding, wanted));
    const seenOn = new Set(shown.flatMap((finding) => [...ranksOf(finding)]));
    const narrowed = wanted || rule.value;
    for (const finding of findings) {
      const out = !shown.includes(finding);
      for (const part of [finding, ...rowsOf(finding)]) part.classList.toggle("filtered", out);
    }
    for (const row of rows) {
      const its = ranksOf(row);
      const kept = (!ranks || share(ranks, its)) && (!narrowed || share(seenOn, its) || (!rule.value && holds(row, wanted)));
      row.classList.toggle("filtered", !kept);
    }
    if (narrowed || ranks) shown.forEach(unfold);
    shownCount.textContent = narrowed || ranks ? `${shown.length} of ${findings.length} findings` : "";
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter)); // the fields are empty once the event is over
  const first = document.querySelector(".findings-list") ?? seen[0] ?? document.querySelector(".ranks .card > *") ?? rows[0];
  const folded = element("details", { class: "filtering" }, element("summary", {}, "Filter"), form);
  if (first.matches(".findings-list")) first.prepend(folded); else first.before(folded);
}

// --- Zoom: a drawing grows in its own box, which scrolls; buttons, keys, the wheel with Ctrl, and a drag.

const STEP = 1.25, LEAST = 0.25, MOST = 6;

function addZoom(box) {
  const drawing = box.querySelector("svg");
  if (!drawing) return;
  let scale = 1, usual = 0;

  function zoom(to, x = box.clientWidth / 2, y = box.clientHeight / 2) {
    if (scale === 1) usual = drawing.getBoundingClientRect().width;
    const next = Math.min(MOST, Math.max(LEAST, to));
    const grown = next / scale, left = box.scrollLeft + x, top = box.scrollTop + y;
    scale = Math.abs(next - 1) < 0.01 ? 1 : next;
    drawing.style.cssText = scale === 1 ? own : `min-width: 0; max-width: none; width: ${usual * scale}px; height: auto`;
    box.classList.toggle("zoomed", scale !== 1);
    box.scrollLeft = left * grown - x;
    box.scrollTop = top * grown - y;
  }

  const own = drawing.style.cssText;
  box.before(element("div", { class: "zooming" },
    button("−", "Zoom out", () => zoom(scale / STEP)), button("+", "Zoom in", () => zoom(scale * STEP)),
    button("1:1", "Reset zoom", () => zoom(1))));
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const { left, top } = box.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const to = { "+": scale * STEP, "=": scale * STEP, "-": scale / STEP, "0": 1 }[event.key];
    if (!to || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    zoom(to);
  });
  box.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "mouse" || event.buttons !== 1) return;
    event.preventDefault();
    box.scrollBy(-event.movementX, -event.movementY);
  });
}

// --- Light: a line of the trace and its reference in the drawing, each by the other.

function light(event) {
  const over = event.target.closest?.("[data-hop]");
  const finding = over?.closest("article.finding");
  for (const lit of all(".lit")) lit.classList.remove("lit");
  if (!finding) return;
  for (const part of all(`[data-hop="${CSS.escape(over.dataset.hop)}"]`, finding)) part.classList.add("lit");
}

function addLight() {
  for (const line of all("article.finding li[data-hop]")) {
    const drawn = line.closest("article.finding").querySelector(`svg [data-hop="${CSS.escape(line.dataset.hop)}"]`);
    if (drawn) line.tabIndex = 0;
  }
  document.addEventListener("pointerover", light);
  document.addEventListener("focusin", light);
}

// --- Links: what a link leads to is unfolded, and shown whatever was filtered; the list marks what is on the screen.

function showTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.closest(".filtered")) document.querySelector("form.filter")?.reset();
  for (const part of all(":scope > details", target)) part.open = true;
  unfold(target);
  requestAnimationFrame(() => target.scrollIntoView());
}

function markListed() {
  const links = new Map(all(".findings-list a[href^='#']").map((link) => [link.hash.slice(1), link]));
  const watching = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) links.get(target.id)?.setAttribute("aria-current", "true");
      else links.get(target.id)?.removeAttribute("aria-current");
    }
  }, { rootMargin: "-10% 0px -60% 0px" });
  for (const finding of all("article.finding")) watching.observe(finding);
}

addCopyButtons();
addFilter();
all(".zoom").forEach(addZoom);
addLight();
markListed();
addEventListener("hashchange", showTarget);
showTarget();
