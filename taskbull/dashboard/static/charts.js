// The values of a chart's periods, by pointer or arrow keys. The table below a chart has them too.
function show(chart, period) {
  const output = chart.closest("figure").querySelector(".value");
  for (const old of chart.querySelectorAll(".chosen")) old.classList.remove("chosen");
  if (period) {
    period.classList.add("chosen");
    const at = new Date(period.dataset.at);
    const options = { weekday: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" };
    output.textContent = `${at.toLocaleString(undefined, options)}: ${period.dataset.said}`;
  } else output.textContent = output.dataset.note;
}

function move(event) {
  const chart = event.target.closest(".chart svg");
  if (!chart) return;
  const periods = [...chart.querySelectorAll(".period")];
  const here = periods.findIndex((period) => period.classList.contains("chosen"));
  const last = periods.length - 1;
  const places = { ArrowLeft: here < 0 ? last : here - 1, ArrowRight: here + 1, Home: 0, End: last };
  if (event.key === "Escape") show(chart, null);
  else if (event.key in places) {
    event.preventDefault();
    show(chart, periods[Math.min(Math.max(places[event.key], 0), last)]);
  }
}

export function startCharts() {
  // One listener each for all charts, because the page's stream replaces them.
  document.addEventListener("keydown", move);
  document.addEventListener("pointerover", (event) => {
    const period = event.target.closest(".period");
    if (period) show(period.closest("svg"), period);
  });
  document.addEventListener("pointerout", (event) => {
    const chart = event.target.closest(".chart svg");
    if (chart && !chart.contains(event.relatedTarget)) show(chart, null);
  });
}
