// The gateway's HTTP API: the key, errors in words, what this checkpoint can do, and kept voices.

export const SPEECH = "v1/audio/speech", VOICES = "v1/audio/voices";

const keyInput = document.getElementById("form").elements.key;

export function apiKey() { return keyInput.value.trim(); }

// JSON as text: a seed may have more digits than a number of this language.
export function withSeed(fields, seed) {
  if (!seed) return JSON.stringify(fields);
  const text = JSON.stringify({...fields, seed: 0});
  return `${text.slice(0, -2)}${seed}}`;
}

async function checked(response) {
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  if (error?.code === "invalid_api_key") throw new Error(apiKey() ? "This API key is not valid." : "This gateway needs an API key: enter it above.");
  throw new Error(error?.message ?? `The server answered ${response.status}.`);
}

// Without a server `fetch` has no words for it.
export async function request(path, options = {}) {
  const headers = {...(apiKey() && {Authorization: `Bearer ${apiKey()}`}), ...options.headers};
  const response = await fetch(path, {...options, headers}).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The gateway cannot be reached.");
  });
  return checked(response);
}

async function json(path) { return (await request(path)).json(); }

export async function capabilities() {
  const [voices, models, description] = await Promise.all([json(VOICES), json("v1/models"), json("openapi.json")]);
  const {maxLength: whole, "x-maxLengthOfTokens": words} = description.components.schemas.SpeechFields.properties.input;
  return {...voices, model: models.data[0].id, maxText: {whole, words}};
}

export async function keepVoice(fields, reference) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.append(name, value);
  form.append("audio_sample", reference, reference.name ?? "reference.wav");
  return (await request(VOICES, {method: "POST", body: form})).json();
}

export function deleteVoice(id) { return request(`${VOICES}/${encodeURIComponent(id)}`, {method: "DELETE"}); }
