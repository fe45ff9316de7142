// Waveform and spectrogram of what has arrived, drawn at most once a frame.

import {Spectrum} from "./fft.js";

const SIZE = 512, HOP = 128, FLOOR_DB = -80;
const MIN_SECONDS = 4;  // The plots show at least this long.

function color(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// 256 pixels (RGBA in memory) from silence to full scale.
function palette() {
  const [low, middle, high] = ["low", "middle", "high"].map(color), colors = new Uint8ClampedArray(4 * 256);
  const mix = (a, b, part) => a.map((each, i) => each + (b[i] - each) * part);
  for (let i = 0; i < 256; i++) colors.set([...(i < 128 ? mix(low, middle, i / 128) : mix(middle, high, (i - 128) / 127)), 255], 4 * i);
  return new Uint32Array(colors.buffer);
}

function fitted(canvas) {
  const scale = window.devicePixelRatio;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  return canvas.getContext("2d");
}

export class Plots {
  #waveform; #spectrogram;
  #spectrum = new Spectrum(SIZE);
  #samples = new Int16Array(0);
  #length = 0;
  #columns = [];  // Uint8Arrays of SIZE / 2 levels, one for each HOP samples...
  #peaks = [];  // ...and the lowest and the highest of these samples: a long text has too many to draw.
  #rate = 24000;
  #pending = false;

  constructor(waveform, spectrogram) {
    this.#waveform = waveform;
    this.#spectrogram = spectrogram;
    const redraw = () => this.#drawSoon();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new ResizeObserver(redraw).observe(waveform);
  }

  get samples() { return this.#samples.subarray(0, this.#length); }

  clear() {
    this.#length = 0;
    this.#columns = [];
    this.#peaks = [];
    this.#drawSoon();
  }

  add(samples, rate) {
    this.#rate = rate;
    if (this.#length + samples.length > this.#samples.length) {
      const larger = new Int16Array(2 * (this.#length + samples.length));
      larger.set(this.samples);
      this.#samples = larger;
    }
    this.#samples.set(samples, this.#length);
    this.#length += samples.length;
    for (let start; (start = this.#columns.length * HOP) + SIZE <= this.#length;) {
      const level = (magnitude) => 255 * Math.max(0, 1 - 20 * Math.log10(magnitude + 1e-9) / FLOOR_DB);
      this.#columns.push(Uint8ClampedArray.from(this.#spectrum.of(this.#samples, start), level));
    }
    for (let start; (start = this.#peaks.length * HOP) + HOP <= this.#length;) {
      const block = this.#samples.subarray(start, start + HOP);
      this.#peaks.push([Math.min(...block), Math.max(...block)]);
    }
    this.#drawSoon();
  }

  describe() {
    const samples = this.samples, seconds = (samples.length / this.#rate).toFixed(2);
    const peak = samples.reduce((most, each) => Math.max(most, Math.abs(each)), 0) / 32768;
    const rms = Math.sqrt(samples.reduce((sum, each) => sum + (each / 32768) ** 2, 0) / Math.max(1, samples.length));
    const db = (value) => (20 * Math.log10(value + 1e-9)).toFixed(0);
    this.#waveform.setAttribute("aria-label", `Waveform: ${seconds} seconds, peak ${db(peak)} dB, mean ${db(rms)} dB`);
    const mean = new Float64Array(SIZE / 2);
    for (const column of this.#columns) column.forEach((each, i) => { mean[i] += each; });
    const strongest = Math.round(mean.indexOf(Math.max(...mean)) * this.#rate / SIZE);
    this.#spectrogram.setAttribute("aria-label", `Spectrogram: ${seconds} seconds, up to ${this.#rate / 2} Hz, strongest near ${strongest} Hz`);
  }

  #drawSoon() {
    if (this.#pending) return;
    this.#pending = true;
    requestAnimationFrame(() => {
      this.#pending = false;
      this.#drawWaveform();
      this.#drawSpectrogram();
    });
  }

  get #shown() { return Math.max(this.#length, MIN_SECONDS * this.#rate); }

  #drawWaveform() {
    const drawing = fitted(this.#waveform), {width, height} = this.#waveform;
    drawing.fillStyle = `rgb(${color("accent")})`;
    for (let x = 0; x < width; x++) {
      const first = Math.floor(x * this.#shown / width / HOP), end = Math.ceil((x + 1) * this.#shown / width / HOP);
      let low = 0, high = 0;
      if (first >= this.#peaks.length) break;
      for (let i = first; i < Math.min(end, this.#peaks.length); i++) {
        low = Math.min(low, this.#peaks[i][0]);
        high = Math.max(high, this.#peaks[i][1]);
      }
      const top = height / 2 * (1 - high / 32768);
      drawing.fillRect(x, top, 1, Math.max(1, height / 2 * (1 - low / 32768) - top));
    }
  }

  #drawSpectrogram() {
    const drawing = fitted(this.#spectrogram), {width, height} = this.#spectrogram;
    if (!this.#columns.length) return;
    const colors = palette(), image = drawing.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    for (let x = 0; x < width; x++) {
      const column = this.#columns[Math.floor(x * this.#shown / width / HOP)];
      if (!column) break;
      for (let y = 0; y < height; y++) {
        pixels[y * width + x] = colors[column[Math.floor((height - 1 - y) * column.length / height)]];
      }
    }
    drawing.putImageData(image, 0, 0);
  }
}
