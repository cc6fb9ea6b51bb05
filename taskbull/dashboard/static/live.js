// The page's stream: fragments of the same HTML that the server renders, one per changed element.
import { localise } from "./times.js";

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("taskbull", { createHTML: (text) => text })
  : { createHTML: (text) => text };

// All that comes from jobs was escaped by the server, which is the only place that makes markup.
export function parse(text) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(text);
  return template.content;
}

const ANNOUNCED_EVERY = 30000;
const REOPENED_AFTER = 5000;
let source = null;
let frozen = false;
let heard = 0;
let announced = 0;
let lastWords = null;

function busy(element) {
  const chosen = window.getSelection();
  return element.contains(document.activeElement)
    || element.querySelector("details[open]:not(.side > details), input:checked, .armed, .chosen") !== null
    || (chosen && !chosen.isCollapsed && element.contains(chosen.anchorNode));
}

function replace(old, text) {
  if (busy(old)) return;
  const fresh = parse(text).firstElementChild;
  localise({ querySelectorAll: (query) => fresh.querySelectorAll(query) });
  old.replaceWith(fresh);
}

function arrange(list, order, items) {
  const rows = new Map([...list.children].map((row) => [row.id, row]));
  let place = list.firstElementChild;
  for (const id of order) {
    let row = rows.get(id);
    if (row && items[id] && !busy(row)) {
      const fresh = parse(items[id]).firstElementChild;
      row.replaceWith(fresh);
      if (place === row) place = fresh;
      row = fresh;
    } else if (!row && items[id]) {
      row = parse(items[id]).firstElementChild;
      row.classList.add("fresh");
    }
    if (!row) continue;
    rows.delete(id);
    if (row === place) place = place.nextElementSibling;
    else list.insertBefore(row, place);
  }
  for (const row of rows.values()) if (!busy(row)) row.remove();
}

function announce() {
  const text = document.getElementById("troubles")?.textContent.trim();
  if (text === undefined || text === lastWords) return;
  const now = Date.now();
  if (lastWords !== null && now - announced < ANNOUNCED_EVERY) return;
  if (lastWords !== null) document.getElementById("announcer").textContent = text;
  [lastWords, announced] = [text, now];
}

function update(message) {
  heard = Date.now();
  const { elements = {}, lists = {}, problem = null } = JSON.parse(message.data);
  document.body.classList.toggle("stale-page", problem !== null);
  for (const [id, text] of Object.entries(elements)) {
    const old = document.getElementById(id);
    if (old) replace(old, text);
  }
  for (const [id, { order, items }] of Object.entries(lists)) {
    const list = document.getElementById(id);
    if (list) arrange(list, order, items);
  }
  localise();
  announce();
  showAge(problem);
}

let trouble = null;
function showAge(problem = trouble) {
  trouble = problem;
  const age = document.getElementById("age");
  if (!age) return;
  const seconds = Math.round((Date.now() - heard) / 1000);
  const late = trouble !== null || (heard && seconds > 10);
  age.classList.toggle("stale", Boolean(late) && !frozen);
  age.classList.toggle("frozen", frozen);
  age.title = trouble ?? "";
  age.textContent = frozen ? "frozen" : !late ? "live" : trouble ? `Redis is unavailable (${seconds} s)` : `last update ${seconds} s ago`;
}

function open() {
  if (source || frozen || document.hidden) return;
  source = new EventSource(document.body.dataset.live);
  source.onmessage = update;
  // The server ends each stream after some seconds, and the browser opens the next one by itself.
  // It gives up if the answer is an error, such as that of a proxy during a deployment.
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return;
    close();
    setTimeout(open, REOPENED_AFTER);
  };
}

function close() {
  source?.close();
  source = null;
}

export function freeze() {
  const button = document.getElementById("freeze");
  if (!document.body.dataset.live) return;
  frozen = !frozen;
  button.setAttribute("aria-pressed", String(frozen));
  button.textContent = frozen ? "Unfreeze" : "Freeze";
  if (frozen) close(); else open();
  showAge();
}

export function startLive() {
  if (!document.body.dataset.live) return;
  const button = document.getElementById("freeze");
  button.hidden = false;
  button.addEventListener("click", freeze);
  // A browser has six connections per host: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  heard = Date.now();
  announce();
  open();
  setInterval(showAge, 1000);
}
