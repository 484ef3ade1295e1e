"use strict";
(() => {
  const root = document.documentElement;
  let stored = null;
  try { stored = localStorage.getItem("mileage-theme"); } catch { /* a file may have no storage */ }
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const dark = () => root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

  const name = (button) => { button.textContent = dark() ? "Light" : "Dark"; };
  const themes = () => document.querySelectorAll("button.theme").forEach((button) => {
    button.hidden = false;
    name(button);
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("mileage-theme", root.dataset.theme); } catch { /* as above */ }
      document.querySelectorAll("button.theme").forEach(name);
    });
  });

  // Episodes: every frame is a list of attributes for the parts of a drawing.
  const replays = () => document.querySelectorAll(".replay").forEach((box) => {
    const data = JSON.parse(box.querySelector("script").textContent);
    const parts = data.parts.map((part) => box.querySelector(`[data-part="${part}"]`));
    const slider = box.querySelector("input"), button = box.querySelector("button"), said = box.querySelector("output");
    let at = 0, timer = null;
    const show = (index) => {
      at = index;
      data.frames[index].forEach((value, i) => parts[i].setAttribute(data.attributes[i], value));
      slider.value = index;
      said.textContent = `step ${index * data.stride}`;
    };
    const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
    const play = () => {
      if (at >= data.frames.length - 1) show(0);
      button.textContent = "Pause";
      timer = setInterval(() => { at >= data.frames.length - 1 ? stop() : show(at + 1); }, data.milliseconds);
    };
    box.querySelector(".controls").hidden = false;
    button.addEventListener("click", () => { timer ? stop() : play(); });
    slider.addEventListener("input", () => { if (timer) stop(); show(Number(slider.value)); });
  });

  // A live page: the server says that something is new, the page asks for the part that changes.
  const live = () => {
    const box = document.querySelector("[data-live]");
    if (!box) return;
    const source = new EventSource(box.dataset.events);
    const chosen = () => [...box.querySelectorAll(".tabs input:checked")].map((input) => input.id);
    let asking = false, again = false;
    const refresh = async () => {
      if (asking) { again = true; return; }
      asking = true;
      try {
        const answer = await fetch(box.dataset.live, { headers: { Accept: "text/html" } });
        if (answer.ok) {
          const open = chosen(), focused = document.activeElement && document.activeElement.id;
          const details = [...box.querySelectorAll("details")].map((each) => each.open);
          box.innerHTML = await answer.text();
          open.forEach((id) => { const input = document.getElementById(id); if (input) input.checked = true; });
          [...box.querySelectorAll("details")].forEach((each, i) => { each.open = Boolean(details[i]); });
          if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
        }
      } finally {
        asking = false;
        if (again) { again = false; refresh(); }
      }
    };
    source.addEventListener("changed", refresh);
    source.addEventListener("ended", () => { refresh(); source.close(); });
  };

  document.addEventListener("DOMContentLoaded", () => { themes(); replays(); live(); });
})();
