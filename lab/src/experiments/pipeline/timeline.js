// Draws the sections of a timeline from the data beside them. It loads nothing from outside the page.
"use strict";

const STATES = ["running", "ready", "waiting", "idle"];
const LEVELS = 51;
const LABELS_WIDTH = 128;
const RIGHT_MARGIN = 16;
const CURVE_HEIGHT = 84;
const CURVE_GAP = 14;
const AXIS_HEIGHT = 24;
const MAIN_HEIGHT = 18;
const SEEN_HEIGHT = 2;

// A row is runs of bins: their number, unless one, and a letter for each state from A for nothing to z for all.
function levels(text, bins) {
  const row = new Uint8Array(4 * bins);
  let at = 0;
  for (const run of text.matchAll(/(\d*)([A-Za-z]{4})/g)) {
    const values = [...run[2]].map((letter) => {
      const code = letter.charCodeAt(0);
      return code < 97 ? code - 65 : code - 71;
    });
    for (let count = Number(run[1] || 1); count > 0; count--, at += 4) row.set(values, at);
  }
  return row;
}

// The mean of each state between two bins of a row, or under the curve, from 0 to 1.
function means(row, from, to) {
  const sums = [0, 0, 0, 0];
  const first = Math.floor(from), last = Math.max(first + 1, Math.ceil(to));
  for (let bin = first; bin < last; bin++) {
    for (let state = 0; state < 4; state++) sums[state] += row[4 * bin + state];
  }
  return sums.map((sum) => sum / (last - first) / LEVELS);
}

function mean(values, from, to) {
  const first = Math.floor(from), last = Math.max(first + 1, Math.ceil(to));
  let sum = 0;
  for (let bin = first; bin < last; bin++) sum += values[bin];
  return sum / (last - first);
}

// A step for about `count` ticks: 1, 2 or 5 times a power of ten.
function step(span, count) {
  const power = 10 ** Math.floor(Math.log10(span / count));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= count);
}

class Section {
  constructor(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.bins = data.bins;
    this.length = data.length_ms;
    this.names = data.rows.map((row) => row.name);
    this.rows = data.rows.map((row) => levels(row.bins, data.bins));
    this.busy = data.busy;
    this.canvas = figure.querySelector("canvas");
    this.description = figure.querySelector("output");
    this.mainHeight = this.names[0] === "main" ? MAIN_HEIGHT : 0;
    this.mains = this.mainHeight > 0 ? 1 : 0;
    this.rowHeight = this.rows.length > 32 ? 6 : this.rows.length > 12 ? 10 : 18;
    this.from = 0;
    this.to = data.bins;
    this.selection = null;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  listen() {
    const place = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.selection = [place(event), place(event)];
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.tell(event);
      if (this.selection === null) return;
      this.selection[1] = place(event);
      this.draw();
    });
    this.canvas.addEventListener("pointerup", () => {
      // Pressed elsewhere.
      if (this.selection === null) return;
      const [from, to] = this.selection.map((x) => this.binAt(x)).sort((one, other) => one - other);
      this.selection = null;
      // Fewer than four bins are a click, or too few to see.
      if (to - from >= 4) [this.from, this.to] = [Math.floor(from), Math.ceil(to)];
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => { this.description.textContent = ""; });
    this.canvas.addEventListener("dblclick", () => {
      [this.from, this.to] = [0, this.bins];
      this.draw();
    });
  }

  plotWidth() { return this.canvas.clientWidth - LABELS_WIDTH - RIGHT_MARGIN; }
  rowsHeight() { return this.mainHeight + (this.rows.length - this.mains) * this.rowHeight; }
  top(index) { return index < this.mains ? 0 : this.mainHeight + (index - this.mains) * this.rowHeight; }
  height(index) { return index < this.mains ? this.mainHeight : this.rowHeight; }
  rowAt(y) {
    return y < this.mainHeight ? 0 : Math.floor((y - this.mainHeight) / this.rowHeight) + this.mains;
  }
  binAt(x) {
    const share = Math.min(Math.max((x - LABELS_WIDTH) / this.plotWidth(), 0), 1);
    return Math.min(this.from + share * (this.to - this.from), this.bins);
  }
  msAt(bin) { return bin / this.bins * this.length; }
  xOf(ms) {
    return LABELS_WIDTH + (ms / this.length * this.bins - this.from) / (this.to - this.from) * this.plotWidth();
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    const height = this.rowsHeight() + CURVE_GAP + CURVE_HEIGHT + AXIS_HEIGHT;
    const scale = devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(this.canvas);
    this.colour = (name) => style.getPropertyValue(`--${name}`);
    context.font = "11px system-ui, sans-serif";
    this.drawAxis(context, height);
    this.rows.forEach((row, index) => this.drawRow(context, row, this.top(index), this.height(index)));
    this.drawLabels(context);
    this.drawCurve(context);
    this.drawSelection(context, height);
  }

  drawAxis(context, height) {
    const [from, to] = [this.msAt(this.from), this.msAt(this.to)];
    const size = step(to - from, this.plotWidth() / 90);
    const digits = Math.max(0, -Math.floor(Math.log10(size)));
    context.textAlign = "center";
    for (let number = Math.ceil(from / size); number * size <= to; number++) {
      const x = this.xOf(number * size);
      context.fillStyle = this.colour("faint");
      context.fillRect(x, 0, 1, height - AXIS_HEIGHT + 4);
      context.fillStyle = this.colour("soft");
      context.fillText(`${(number * size).toFixed(digits)} ms`, Math.min(x, this.canvas.clientWidth - 24), height - 6);
    }
  }

  drawRow(context, row, top, height) {
    const room = height - (height > 8 ? 2 : 1);
    const colours = STATES.map(this.colour);
    for (let x = 0; x < this.plotWidth(); x++) {
      const shares = means(row, this.binAt(LABELS_WIDTH + x), this.binAt(LABELS_WIDTH + x + 1));
      const there = shares.reduce((sum, share) => sum + share, 0);
      if (there === 0) continue;
      // Anything above zero is visible.
      const tall = Math.min(Math.max(there * room, SEEN_HEIGHT), room);
      let base = top + room;
      shares.forEach((share, state) => {
        context.fillStyle = colours[state];
        context.fillRect(LABELS_WIDTH + x, base - tall * share / there, 1, tall * share / there);
        base -= tall * share / there;
      });
    }
  }

  drawLabels(context) {
    const every = Math.ceil(12 / this.rowHeight);
    context.textAlign = "right";
    context.fillStyle = this.colour("soft");
    this.names.forEach((name, index) => {
      if (index >= this.mains && (index - this.mains) % every !== 0) return;
      context.fillText(name, LABELS_WIDTH - 8, this.top(index) + this.height(index) / 2 + 4);
    });
  }

  drawCurve(context) {
    const top = this.rowsHeight() + CURVE_GAP, base = top + CURVE_HEIGHT;
    context.textAlign = "right";
    context.fillStyle = this.colour("soft");
    context.fillText("CPUs busy 100 %", LABELS_WIDTH - 8, top + 8);
    context.fillText("0 %", LABELS_WIDTH - 8, base);
    context.fillStyle = this.colour("faint");
    context.fillRect(LABELS_WIDTH, top, this.plotWidth(), 1);
    context.fillRect(LABELS_WIDTH, base, this.plotWidth(), 1);
    context.fillStyle = this.colour("running");
    for (let x = 0; x < this.plotWidth(); x++) {
      const permille = mean(this.busy, this.binAt(LABELS_WIDTH + x), this.binAt(LABELS_WIDTH + x + 1));
      const tall = Math.min(permille / 1000, 1) * CURVE_HEIGHT;
      context.fillRect(LABELS_WIDTH + x, base - tall, 1, tall);
    }
  }

  drawSelection(context, height) {
    if (this.selection === null) return;
    const [from, to] = [...this.selection].sort((one, other) => one - other);
    context.fillStyle = this.colour("chosen");
    context.fillRect(Math.max(from, LABELS_WIDTH), 0, to - Math.max(from, LABELS_WIDTH), height - AXIS_HEIGHT);
  }

  tell(event) {
    const box = this.canvas.getBoundingClientRect();
    const bin = Math.min(this.binAt(event.clientX - box.left), this.bins - 1);
    const at = `${this.msAt(bin).toFixed(1)} ms`;
    const index = this.rowAt(event.clientY - box.top);
    const busy = `CPUs busy ${(this.busy[Math.floor(bin)] / 10).toFixed(0)} %`;
    if (index < 0 || index >= this.rows.length) {
      this.description.textContent = `${at}: ${busy}`;
      return;
    }
    const shares = means(this.rows[index], bin, bin + 1);
    const words = STATES.map((state, number) => [state, shares[number]]).filter((pair) => pair[1] > 0)
      .map(([state, share]) => `${state} ${(100 * share).toFixed(0)} %`);
    const doing = words.length > 0 ? words.join(", ") : "no thread";
    this.description.textContent = `${at}: ${this.names[index]} ${doing}; ${busy}`;
  }
}

document.querySelectorAll("figure").forEach((figure) => new Section(figure));
