// The official JavaScript client: a whole file, the body as it arrives, and server-sent events.
import OpenAI from "openai";
import { apiUrl, Report, text } from "./report.mjs";

const client = new OpenAI({ baseURL: apiUrl, apiKey: "none" });
const request = { model: "gpt-4o-mini-tts", voice: "alloy", input: text };
const report = new Report();

await report.case("a file", async (speech) => {
  const response = await client.audio.speech.create(request);
  speech.save(Buffer.from(await response.arrayBuffer()), "wav");
});
await report.case("pcm as it arrives", async (speech) => {
  const response = await client.audio.speech.create({ ...request, response_format: "pcm" });
  const chunks = [];
  for await (const chunk of response.body) {
    speech.hear();
    chunks.push(chunk);
  }
  speech.save(Buffer.concat(chunks), "pcm", 24000);
});
await report.case("server-sent events with mp3", async (speech) => {
  const response = await client.audio.speech.create({ ...request, response_format: "mp3", stream_format: "sse" });
  const chunks = [];
  let rest = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data: "))) {
      const event = JSON.parse(line.slice(6));
      if (event.type !== "speech.audio.delta") continue;
      speech.hear();
      chunks.push(Buffer.from(event.audio, "base64"));
    }
  }
  speech.save(Buffer.concat(chunks), "mp3");
});
report.write();
