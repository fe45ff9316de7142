// Plays samples as they arrive, and measures the gaps between them.

const LEAD_SECONDS = 0.05;  // How far ahead audio is scheduled after a gap.

export class Player {
  gaps = [];  // Seconds of each gap: the listener hears nothing because nothing has arrived.
  #context;
  #end = 0;  // Where the audio ends, in samples of the context: at a fraction of one the browser would interpolate.
  #last = null;

  // Call it while a user's action is handled: browsers let no other page play.
  constructor(rate) {
    this.#context = new AudioContext({sampleRate: rate});
    this.#context.resume();
  }

  play(samples, rate) {
    if (!samples.length || this.#context.state === "closed") return;
    const buffer = this.#context.createBuffer(1, samples.length, rate), channel = buffer.getChannelData(0);
    samples.forEach((each, i) => { channel[i] = each / 32768; });
    const scale = this.#context.sampleRate, now = Math.ceil((this.#context.currentTime + LEAD_SECONDS) * scale);
    if (this.#end < this.#context.currentTime * scale) {
      if (this.#last) this.gaps.push((now - this.#end) / scale);
      this.#end = now;
    }
    this.#last = new AudioBufferSourceNode(this.#context, {buffer});
    this.#last.connect(this.#context.destination);
    this.#last.start(this.#end / scale);
    this.#end += Math.round(buffer.duration * scale);
  }

  // Returns when everything was heard, or after `stop`.
  async finish() {
    const left = this.#end / this.#context.sampleRate - this.#context.currentTime;
    await new Promise((resolve) => {
      this.#context.addEventListener("statechange", () => this.#context.state === "closed" && resolve());
      if (this.#last) this.#last.addEventListener("ended", resolve);
      if (left <= 0 || this.#context.state === "closed") resolve();
    });
    this.stop();
  }

  stop() { if (this.#context.state !== "closed") this.#context.close(); }
}
