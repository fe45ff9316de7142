// Records the microphone into a WAV file.

import {wav} from "./wav.js";

export const MAX_SECONDS = 30;

// Why this page cannot record; empty if it can.
export function problem() {
  if (!window.isSecureContext) return "Browsers let pages record over HTTPS and on localhost only.";
  return navigator.mediaDevices ? "" : "This browser does not let pages record.";
}

export class Recorder {
  #context; #stream;
  #parts = [];
  #count = 0;

  // Raises an Error in words. onSeconds is called with what is recorded so far.
  async start(onSeconds) {
    const plain = {echoCancellation: false, noiseSuppression: false, autoGainControl: false};
    this.#stream = await navigator.mediaDevices.getUserMedia({audio: plain}).catch((error) => {
      throw new Error(error.name === "NotAllowedError" ? "The browser does not permit this page to use the microphone." : "There is no microphone.");
    });
    this.#context = new AudioContext();
    await this.#context.audioWorklet.addModule(new URL("recorder-worklet.js", import.meta.url));
    const recorder = new AudioWorkletNode(this.#context, "recorder", {numberOfOutputs: 0});
    recorder.port.onmessage = ({data}) => {
      this.#parts.push(data);
      this.#count += data.length;
      onSeconds(this.#count / this.#context.sampleRate);
    };
    this.#context.createMediaStreamSource(this.#stream).connect(recorder);
  }

  async stop() {
    this.#stream.getTracks().forEach((track) => track.stop());
    const rate = this.#context.sampleRate, samples = new Int16Array(this.#count);
    await this.#context.close();
    let at = 0;
    for (const part of this.#parts) for (const each of part) samples[at++] = Math.round(Math.max(-1, Math.min(1, each)) * 32767);
    return wav(samples, rate);
  }
}
