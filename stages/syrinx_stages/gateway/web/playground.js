// The playground: what the form says is spoken, heard, shown, and written as code.

import {apiKey, capabilities} from "./api.js";
import {setUpClone, showVoices} from "./clone.js";
import {Player} from "./player.js";
import {Plots} from "./plots.js";
import {curl, pythonCode} from "./snippets.js";
import {speakWhole, speakWords} from "./speech.js";
import {wav} from "./wav.js";

const RATE = 24000;  // The model's; audio of another rate is resampled by the browser.
const $ = (id) => document.getElementById(id);
const form = $("form"), controls = form.elements;
const plots = new Plots($("waveform"), $("spectrogram"));
let model = "", running = null;
let maxText = null;  // Characters of a text, by mode.

function show(figures) {
  for (const [id, text] of Object.entries(figures)) $(id).textContent = text;
}

// The form --------------------------------------------------------------------------------------------------------

async function load(chosen) {
  show({error: ""});
  try {
    const found = await capabilities();
    ({model, maxText} = found);
    show({model});
    showFields(found, chosen);
    showMode();
    showVoices(found);
    controls.speak.disabled = Boolean(running);
  } catch (error) {
    show({error: error.message});
  }
}

function showFields({voices, default: first, languages, instructions, task_types: [task]}, chosen) {
  const option = (value, text, wanted) => new Option(text, value, value === wanted, value === wanted);
  const named = voices.filter((voice) => !("alias_of" in voice)), before = controls.voice.value;
  const wanted = chosen ?? (named.some(({id}) => id === before) ? before : first);
  const none = named.length ? [] : [option("", "none: clone one below")];
  controls.voice.replaceChildren(...none, ...named.map(({id, name}) => option(id, name, wanted)));
  controls.voice.required = task !== "VoiceDesign";
  controls.voice.parentElement.hidden = task === "VoiceDesign";
  const language = controls.language.value;
  controls.language.replaceChildren(option("", "automatic", language), ...languages.map((each) => option(each, each, language)));
  controls.instructions.parentElement.hidden = !instructions;
  controls.instructions.required = task === "VoiceDesign";
  controls.instructions.placeholder = task === "VoiceDesign" ? "describe the voice" : "how to speak";
}

function showMode() {
  controls.pace.disabled = controls.mode.value !== "words";
  if (maxText) controls.input.maxLength = maxText[controls.mode.value];
}

// The request, without what only concerns its delivery.
function fields() {
  const given = {input: controls.input.value};
  for (const name of ["voice", "language", "instructions"]) {
    if (controls[name].value && !controls[name].parentElement.hidden) given[name] = controls[name].value;
  }
  const speed = Number(controls.speed.value);
  return speed && speed !== 1 ? {...given, speed} : given;
}

// Speaking --------------------------------------------------------------------------------------------------------

class Run {
  abort = new AbortController();
  player = new Player(RATE);
  fields = fields();
  seed = controls.seed.value;
  isWords = controls.mode.value === "words";
  pace = Number(controls.pace.value) || 1;
  rate = RATE;
  reason = "";
  characters = null;
  #began = performance.now();
  #first = null;
  #last = null;
  #count = 0;

  get seconds() { return this.#count / this.rate; }

  events() {
    const {signal} = this.abort;
    if (this.isWords) return speakWords(this.fields, this.seed, this.pace, signal, showSent);
    return speakWhole(this.fields, this.seed, signal);
  }

  async receive() {
    for await (const event of this.events()) {
      if (event.warning) show({error: event.warning});
      if (event.type === "start") {
        this.rate = event.rate ?? this.rate;
        this.seed = event.seed ?? this.seed;
      }
      if (event.type === "audio" && !this.abort.signal.aborted) this.#hear(event.samples);
      if (event.type === "done") [this.reason, this.characters] = [event.reason, event.characters];
    }
    this.#figures();
  }

  #hear(samples) {
    this.#last = performance.now();
    this.#first ??= this.#last - this.#began;
    this.#count += samples.length;
    this.player.play(samples, this.rate);
    plots.add(samples, this.rate);
    this.#figures();
  }

  #figures() {
    const {gaps} = this.player, silent = gaps.reduce((sum, each) => sum + each, 0);
    show({
      first: this.#first === null ? "–" : `${this.#first.toFixed(0)} ms`,
      duration: `${this.seconds.toFixed(2)} s`,
      factor: this.seconds ? ((this.#last - this.#began) / 1000 / this.seconds).toFixed(2) : "–",
      gaps: gaps.length ? `${gaps.length}, ${(1000 * silent).toFixed(0)} ms` : "none",
      reason: this.reason || "–",
      seed: this.seed || "–",
    });
  }

  get summary() {
    const made = `${this.seconds.toFixed(2)} seconds of speech; first audio after ${$("first").textContent}`;
    if (this.reason !== "canceled") return `${made}; finish reason ${this.reason}.`;
    if (!this.characters) return "Canceled.";
    const read = [...this.fields.input].slice(0, this.characters).join("");  // The gateway counts code points.
    return `Canceled. The model had read up to: “${read}”`;
  }
}

function showSent(sent, all) {
  $("words").max = all;
  $("words").value = sent;
}

async function speak() {
  const run = running = new Run();
  setRunning(true);
  plots.clear();
  $("sent").hidden = !run.isWords;
  showSent(0, 1);
  show({error: "", status: "Waiting for audio.", first: "–", duration: "–", factor: "–", gaps: "–", reason: "–", seed: "–"});
  try {
    await run.receive();
    show({status: run.summary});
    showResult(run);
    await run.player.finish();
  } catch (error) {
    run.player.stop();
    show({status: "", error: error.message, reason: "error"});
  }
  setRunning(false);
}

function setRunning(isRunning) {
  const [used, other] = isRunning ? [controls.speak, controls.stop] : [controls.stop, controls.speak];
  other.disabled = false;
  // The focus of the keyboard would be lost with the button.
  if (document.activeElement === used) other.focus();
  used.disabled = true;
  if (!isRunning) running = null;
}

function stop() {
  running?.abort.abort();
  running?.player.stop();
}

// The result ------------------------------------------------------------------------------------------------------

function showResult(run) {
  plots.describe();
  URL.revokeObjectURL($("save").href);
  const file = URL.createObjectURL(wav(plots.samples, run.rate));
  $("save").href = $("replay").src = file;
  $("result").hidden = !run.seconds;
  const {seed, isWords, pace, rate} = run;
  const spoken = {url: document.baseURI, fields: run.fields, seed, hasKey: Boolean(apiKey()), model, isWords, pace, rate};
  show({curl: curl(spoken), python: pythonCode(spoken)});
  $("curl-note").hidden = !isWords;
  $("code").hidden = false;
}

async function copy(button) {
  await navigator.clipboard.writeText($(button.dataset.copies).textContent);
  show({status: "Copied."});
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) speak();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey && !running) form.requestSubmit();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
controls.stop.addEventListener("click", stop);
form.addEventListener("change", showMode);
controls.key.addEventListener("change", () => load());
for (const button of document.querySelectorAll("[data-copies]")) {
  button.hidden = !navigator.clipboard;  // Browsers give it to secure contexts only.
  button.addEventListener("click", () => copy(button).catch((error) => show({error: error.message})));
}
setUpClone(load);
load();
