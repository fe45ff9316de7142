// The AI SDK: generateSpeech with its OpenAI provider.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateSpeech } from "ai";
import { apiUrl, Report, text } from "./report.mjs";

const openai = createOpenAI({ baseURL: apiUrl, apiKey: "none" });
const report = new Report();

await report.case("generateSpeech", async (speech) => {
  const result = await generateSpeech({ model: openai.speech("tts-1"), text });
  assert.deepEqual(result.warnings, []);
  speech.save(result.audio.uint8Array, result.audio.format);
});
report.write();
