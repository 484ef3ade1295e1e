"use strict";
for (const icicle of document.querySelectorAll(".icicle")) {
  const boxes = [...icicle.querySelectorAll("button")];
  const line = document.getElementById("box");
  const show = (left, width) => {
    for (const box of boxes) {
      const from = (box.dataset.x - left) / width, size = box.dataset.w / width;
      const seen = from < 1 && from + size > 0;
      box.hidden = !seen;
      box.style.left = 100 * Math.max(0, from) + "%";
      box.style.width = 100 * (Math.min(1, from + size) - Math.max(0, from)) + "%";
    }
  };
  for (const box of boxes) {
    box.addEventListener("click", () => { show(+box.dataset.x, +box.dataset.w); line.textContent = box.title; });
    box.addEventListener("mouseenter", () => { line.textContent = box.title; });
  }
}
