// The spectrum of a frame of audio: a radix-2 FFT of a Hann window.

export class Spectrum {
  #size; #window; #order; #cos; #sin;

  constructor(size) {
    this.#size = size;
    const bits = Math.log2(size), all = (make, count = size) => Float64Array.from({length: count}, (_, i) => make(i));
    this.#window = all((i) => 0.5 - 0.5 * Math.cos(2 * Math.PI * i / size));
    this.#order = Uint32Array.from({length: size}, (_, i) => {
      let reversed = 0;
      for (let bit = 0; bit < bits; bit++) reversed |= ((i >> bit) & 1) << (bits - 1 - bit);
      return reversed;
    });
    this.#cos = all((i) => Math.cos(2 * Math.PI * i / size), size / 2);
    this.#sin = all((i) => -Math.sin(2 * Math.PI * i / size), size / 2);
  }

  // Returns the magnitudes of size / 2 bins for `size` samples from `start`; a sine at full scale has 1.
  of(samples, start) {
    const size = this.#size, real = new Float64Array(size), imaginary = new Float64Array(size);
    for (let i = 0; i < size; i++) real[this.#order[i]] = this.#window[i] * samples[start + i] / 32768;
    for (let half = 1; half < size; half *= 2) {
      const stride = size / (2 * half);
      for (let block = 0; block < size; block += 2 * half) {
        for (let k = 0; k < half; k++) {
          const a = block + k, b = a + half, cos = this.#cos[k * stride], sin = this.#sin[k * stride];
          const re = real[b] * cos - imaginary[b] * sin, im = real[b] * sin + imaginary[b] * cos;
          real[b] = real[a] - re;
          imaginary[b] = imaginary[a] - im;
          real[a] += re;
          imaginary[a] += im;
        }
      }
    }
    return Float32Array.from({length: size / 2}, (_, i) => Math.hypot(real[i], imaginary[i]) * 4 / size);
  }
}
