// Zooms into a clicked frame, and out to everything on the lowest one.
"use strict";
(() => {
  const frames = [...document.querySelectorAll("g.frame")].map((group) => {
    const [rect, text, title] = ["rect", "text", "title"].map((name) => group.querySelector(name));
    const from = Number(rect.getAttribute("x")), width = Number(rect.getAttribute("width"));
    return { group, rect, text, from, width, name: title.textContent.split("\n")[0] };
  });
  const all = frames[0];
  const show = (chosen) => {
    const scale = all.width / chosen.width;
    for (const frame of frames) {
      const from = Math.max(frame.from, chosen.from), to = Math.min(frame.from + frame.width, chosen.from + chosen.width);
      frame.group.style.display = to > from ? "" : "none";
      if (to <= from) continue;
      const x = all.from + (from - chosen.from) * scale, width = (to - from) * scale;
      frame.rect.setAttribute("x", x);
      frame.rect.setAttribute("width", width);
      frame.text.setAttribute("x", x + 3);
      const letters = Math.floor((width - 4) / LETTER_WIDTH);
      frame.text.textContent = letters < 3 ? "" : frame.name.length > letters ? `${frame.name.slice(0, letters - 1)}…` : frame.name;
    }
  };
  frames.forEach((frame) => frame.group.addEventListener("click", () => show(frame)));
  show(all);
})();
