// Speech as it is made. Both functions yield {type: "start", rate, seed}, {type: "audio", samples: Int16Array} and
// {type: "done", reason, characters}; an abort ends them with the reason "canceled". `warning` may be in any of them.

import {apiKey, request, SPEECH, VOICES, withSeed} from "./api.js";

const STREAM = "v1/audio/speech/stream";

class Pcm {
  #odd = new Uint8Array(0);

  // Returns the samples that are complete.
  take(data) {
    const bytes = new Uint8Array(this.#odd.length + data.length);
    bytes.set(this.#odd);
    bytes.set(data, this.#odd.length);
    const count = bytes.length >> 1, view = new DataView(bytes.buffer);
    this.#odd = bytes.slice(2 * count);
    return Int16Array.from({length: count}, (_, i) => view.getInt16(2 * i, true));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part; !(part = await reader.read()).done;) {
    const blocks = (text + part.value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) yield JSON.parse(block.replace(/^data: /, ""));
  }
}

// In words, from a header like: 299 - "…", 299 - "…"
function warnings(headers) {
  const quoted = headers.get("Warning")?.match(/"(?:[^"\\]|\\.)*"/g) ?? [];
  return quoted.map((each) => JSON.parse(each)).join("; ");
}

export async function* speakWhole(fields, seed, signal) {
  const pcm = new Pcm(), delivery = {response_format: "pcm", stream_format: "sse"};
  const options = {method: "POST", headers: {"Content-Type": "application/json"}, signal};
  try {
    const response = await request(SPEECH, {...options, body: withSeed({...fields, ...delivery}, seed)});
    const {headers} = response;
    yield {type: "start", rate: Number(headers.get("X-Sample-Rate")), seed: headers.get("X-Seed"), warning: warnings(headers)};
    for await (const event of events(response.body)) {
      if (event.type === "speech.audio.error") throw new Error(event.error.message);
      if (event.type === "speech.audio.done") return yield {type: "done", reason: event.finish_reason};
      yield {type: "audio", samples: pcm.take(Uint8Array.from(atob(event.audio), (each) => each.charCodeAt(0)))};
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    return yield {type: "done", reason: "canceled"};
  }
  throw new Error("The connection was lost before the speech was complete.");
}

// Messages of a WebSocket in order; null at its end.
class Messages {
  #waiting = [];
  #notify = () => {};

  constructor(socket) {
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({data}) => this.#add(data));
    socket.addEventListener("close", () => this.#add(null));
  }

  #add(data) {
    this.#waiting.push(data);
    this.#notify();
  }

  async next() {
    while (!this.#waiting.length) await new Promise((resolve) => { this.#notify = resolve; });
    return this.#waiting.shift();
  }
}

async function opened(signal) {
  const url = new URL(STREAM, document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  // The only place for a key: a browser sends no headers of a page when it opens a WebSocket.
  const protocols = ["speech", ...(apiKey() ? [`openai-insecure-api-key.${apiKey()}`] : [])];
  if (!protocols.every((each) => /^[\w!#$%&'*+.^`|~-]+$/.test(each))) throw new Error("Browsers cannot send this API key on a WebSocket.");
  const socket = new WebSocket(url, protocols);
  const messages = new Messages(socket);
  const isOpen = await new Promise((resolve) => {
    socket.addEventListener("open", () => (signal.aborted ? socket.close() : resolve(true)));
    socket.addEventListener("close", () => resolve(false));
    signal.addEventListener("abort", () => resolve(false));
  });
  if (isOpen || signal.aborted) return {socket, messages};
  // A browser does not say why. A plain request does, if it is the key.
  await request(VOICES);
  throw new Error("The gateway accepts no WebSocket here.");
}

async function write(socket, words, pace, signal, onWord) {
  for (const [index, word] of words.entries()) {
    if (signal.aborted || socket.readyState !== WebSocket.OPEN) return;
    socket.send(JSON.stringify({type: "input.text", text: word}));
    onWord(index + 1, words.length);
    await new Promise((resolve) => { setTimeout(resolve, 1000 / pace); });
  }
  if (!signal.aborted && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({type: "input.done"}));
}

export async function* speakWords(fields, seed, pace, signal, onWord) {
  const {input, ...config} = fields, pcm = new Pcm();
  const {socket, messages} = await opened(signal);
  try {
    if (signal.aborted) return yield {type: "done", reason: "canceled"};
    const send = (text) => socket.readyState === WebSocket.OPEN && socket.send(text);
    send(withSeed({type: "session.config", text_mode: "tokens", ...config}, seed));
    signal.addEventListener("abort", () => send('{"type": "cancel"}'));
    write(socket, input.match(/\s*\S+\s*/g) ?? [], pace, signal, onWord);
    for (let data; (data = await messages.next()) !== null;) {
      if (typeof data !== "string") {
        yield {type: "audio", samples: pcm.take(new Uint8Array(data))};
        continue;
      }
      const message = JSON.parse(data);
      if (["error", "session.done"].includes(message.type)) {
        if (signal.aborted) break;
        throw new Error(message.message ?? "There is nothing to speak.");
      }
      if (message.type === "warning") yield {type: "start", warning: message.message};
      if (message.type === "audio.start") yield {type: "start", rate: message.sample_rate, seed: /"seed": (\d+)/.exec(data)?.[1]};
      if (message.type === "audio.done") return yield {type: "done", reason: message.finish_reason, characters: message.spoken_characters};
    }
    if (!signal.aborted) throw new Error("The connection was lost before the speech was complete.");
    yield {type: "done", reason: "canceled"};
  } finally {
    if (socket.readyState === WebSocket.OPEN) socket.close();
  }
}
