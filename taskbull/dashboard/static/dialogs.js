// Questions without leaving the page. A light one is asked by the button itself: press it twice.
import { parse } from "./live.js";

const ARMED_FOR = 4000;

function once() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function hidden(form, name, value) {
  const input = document.createElement("input");
  Object.assign(input, { type: "hidden", name, value });
  form.append(input);
}

function arm(button) {
  const label = button.textContent;
  button.textContent = `${label}: sure?`;
  button.classList.add("armed");
  setTimeout(() => {
    if (!button.isConnected || button.disabled) return;
    button.textContent = label;
    button.classList.remove("armed");
  }, ARMED_FOR);
}

async function ask(form, submitter) {
  const fields = new URLSearchParams(new FormData(form, submitter));
  fields.set("fragment", "yes");
  // Not form.action: a field of that name is in the way.
  const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields });
  if (!answer.ok) throw new Error(answer.statusText);
  const dialog = document.getElementById("question");
  dialog.replaceChildren(parse(await answer.text()));
  dialog.querySelector("[data-close]")?.addEventListener("click", (event) => {
    event.preventDefault();
    dialog.close();
  });
  dialog.showModal();
}

function submitted(event) {
  const form = event.target;
  if (form.classList.contains("act")) {
    if (event.submitter?.hasAttribute("formaction")) return; // it only looks, as often as one likes
    // A second press does nothing: the form's number makes it count once anyway.
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
    return;
  }
  if (!form.classList.contains("ask")) return;
  const button = event.submitter ?? form.querySelector("button");
  if (form.hasAttribute("data-light")) {
    if (!button.classList.contains("armed")) {
      event.preventDefault();
      arm(button);
      return;
    }
    form.setAttribute("action", "act");
    hidden(form, "once", once());
    form.classList.replace("ask", "act");
    return;
  }
  event.preventDefault();
  // What cannot be asked here is asked by a page, or that says why not.
  ask(form, event.submitter).catch(() => {
    form.classList.remove("ask");
    form.requestSubmit(event.submitter);
  });
}

// The way back from what was just done is open for a while only.
function closeOffers() {
  for (const offer of document.querySelectorAll("[data-seconds]")) {
    setTimeout(() => offer.remove(), Number(offer.dataset.seconds) * 1000);
  }
}

export function startDialogs() {
  document.addEventListener("submit", submitted);
  closeOffers();
}
