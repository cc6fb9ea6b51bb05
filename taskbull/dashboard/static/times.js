// Instants in the reader's words and time zone.
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

// With the time zone, because logs are in UTC.
const CLOCK = { dateStyle: "medium", timeStyle: "long" };

export function words(seconds) {
  let rest = Math.max(0, Math.round(seconds));
  for (let i = 0; i < UNITS.length; i++) {
    const [unit, size] = UNITS[i];
    const count = Math.floor(rest / size);
    if (count === 0) continue;
    rest -= count * size;
    const [next, nextSize] = UNITS[i + 1] ?? ["", Infinity];
    const more = Math.floor(rest / nextSize);
    return more ? `${count} ${unit} ${more} ${next}` : `${count} ${unit}`;
  }
  return "0 s";
}

function show(element, now) {
  const at = Date.parse(element.dateTime);
  if (Number.isNaN(at)) return;
  const seconds = (now - at) / 1000;
  let text;
  switch (element.dataset.as) {
    case "ago": text = seconds >= 0 ? `${words(seconds)} ago` : `in ${words(-seconds)}`; break;
    case "since": text = words(seconds); break;
    default: text = new Date(at).toLocaleString(undefined, CLOCK);
  }
  if (element.textContent !== text) element.textContent = text;
  if (!element.dataset.local) {
    element.dataset.local = "yes";
    element.title = new Date(at).toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
  }
}

export function localise(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[data-as]")) show(element, now);
}

export function startTimes() {
  localise();
  setInterval(() => { if (!document.hidden) localise(); }, 1000);
}
