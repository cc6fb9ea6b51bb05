// Ticking jobs: all that are shown at once, and how many are.
function count(form) {
  const boxes = [...form.querySelectorAll("tbody input[name=id]")];
  const ticked = boxes.filter((box) => box.checked).length;
  const words = form.querySelector("[data-ticked]");
  if (words) words.textContent = ticked ? `${ticked} selected of ` : "";
  const all = form.querySelector("[data-all]");
  if (all) {
    all.checked = ticked > 0 && ticked === boxes.length;
    all.indeterminate = ticked > 0 && ticked < boxes.length;
  }
  for (const button of form.querySelectorAll(".bulk button")) button.disabled = ticked === 0;
}

export function startSelect() {
  for (const form of document.querySelectorAll("form.select")) {
    const all = form.querySelector("[data-all]");
    if (all) all.hidden = false;
    form.addEventListener("change", (event) => {
      if (event.target === all) {
        for (const box of form.querySelectorAll("tbody input[name=id]")) box.checked = all.checked;
      }
      count(form);
    });
    count(form);
  }
}
