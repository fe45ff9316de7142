// The section that keeps voices: a reference from a file or the microphone.

import {deleteVoice, keepVoice} from "./api.js";
import {MAX_SECONDS, problem, Recorder} from "./recorder.js";

const form = document.getElementById("clone"), controls = form.elements;
const [note, recorded, kept, failed] = ["clone-note", "recorded", "kept", "clone-error"].map((id) => document.getElementById(id));
let recorder = null, recording = null;  // The one in progress; the WAV file of the last.
let onChange = async () => {};

// refresh is called with the id of a new voice, or after one was deleted.
export function setUpClone(refresh) {
  onChange = refresh;
  form.addEventListener("submit", (event) => { event.preventDefault(); attempt(keep); });
  controls.record.addEventListener("click", () => attempt(recorder ? stopRecording : startRecording));
  controls.file.addEventListener("change", () => { recording = null; recorded.textContent = ""; });
  controls.record.disabled = Boolean(problem());
  recorded.textContent = problem();
}

export function showVoices({task_types: tasks, uploaded_voices: uploaded}) {
  const clones = tasks.includes("Base");
  form.hidden = !clones;
  note.textContent = clones
    ? "Keep only voices of people who agreed. A voice belongs to your API key; without keys everybody who reaches this gateway can use it."
    : `This checkpoint clones no voices: its task is ${tasks.join(", ")}. A Base checkpoint does.`;
  document.getElementById("voices").replaceChildren(...uploaded.map(listed));
}

function listed({id, name}) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  button.textContent = `Delete ${name}`;
  button.addEventListener("click", () => attempt(async () => {
    await deleteVoice(id);
    controls.name.focus();
    await onChange();
    kept.textContent = `${name} is deleted.`;
  }));
  item.append(name, button);
  return item;
}

async function attempt(work) {
  failed.textContent = "";
  try {
    await work();
  } catch (error) {
    kept.textContent = "";
    failed.textContent = error.message;
  }
}

async function startRecording() {
  const starting = new Recorder();
  await starting.start((seconds) => {
    controls.record.textContent = `Stop recording (${Math.floor(seconds)} s)`;
    if (seconds >= MAX_SECONDS && recorder) attempt(stopRecording);
  });
  recorder = starting;
  recorded.textContent = "Recording.";
}

async function stopRecording() {
  const stopping = recorder;
  recorder = null;
  recording = await stopping.stop();
  controls.file.value = "";
  controls.record.textContent = "Record again";
  recorded.textContent = "The recording is the reference.";
}

async function keep() {
  if (recorder) await stopRecording();
  const reference = recording ?? controls.file.files[0];
  if (!reference) throw new Error("Choose a file, or record the reference.");
  controls.keep.disabled = true;
  kept.textContent = "The voice is prepared and checked.";
  try {
    const fields = {name: controls.name.value, consent: controls.consent.value, ref_text: controls.transcript.value};
    const voice = await keepVoice(fields, reference);
    const lasting = voice.durable ? "" : " It is lost if Redis restarts.";
    await onChange(voice.id);
    kept.textContent = `${voice.name} is kept and chosen above.${lasting}`;
  } finally {
    controls.keep.disabled = false;
  }
}
