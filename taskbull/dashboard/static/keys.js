// Shortcuts of one letter, which can be turned off: some people speak to their computer.
import { freeze } from "./live.js";

const PAGES = { o: "./", s: "schedules", w: "workers", p: "operations", r: "redis" };
const SETTING = "taskbull-keys";
let gone = false;

function on() {
  return localStorage.getItem(SETTING) !== "off";
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, dialog[open]")) return;
  if (!on()) return;
  if (event.key === "?") document.getElementById("help").showModal();
  else if (gone && PAGES[event.key]) location.href = PAGES[event.key];
  else if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  } else if (event.key === "p") freeze();
  gone = event.key === "g";
}

export function startKeys() {
  document.addEventListener("keydown", pressed);
  const button = document.getElementById("keys-help");
  button.hidden = false;
  button.addEventListener("click", () => document.getElementById("help").showModal());
  const box = document.getElementById("keys-on");
  box.checked = on();
  box.addEventListener("change", () => localStorage.setItem(SETTING, box.checked ? "on" : "off"));
}
