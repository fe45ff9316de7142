// A request as curl and Python. The key is left to the environment.

import {withSeed} from "./api.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// JSON's strings and numbers are Python's, too.
const python = JSON.stringify;

export function curl({url, fields, seed, hasKey, isWords}) {
  const body = withSeed(isWords ? {...fields, non_streaming_mode: false} : fields, seed);
  const lines = [`curl ${quoted(new URL("v1/audio/speech", url).href)}`, "-H 'Content-Type: application/json'"];
  if (hasKey) lines.push('-H "Authorization: Bearer $SYRINX_API_KEY"');
  return [...lines, `-d ${quoted(body)}`, "-o speech.wav"].join(" \\\n  ");
}

export function pythonCode(spoken) { return (spoken.isWords ? words : whole)(spoken); }

function whole({url, fields, seed, hasKey, model}) {
  const {input, voice, instructions, speed, ...more} = fields;
  const given = {model, voice: voice ?? "default", input, instructions, speed, response_format: "wav"};
  const named = Object.entries(given).filter(([, value]) => value !== undefined);
  return `import openai
${hasKey ? "import os\n" : ""}
client = openai.OpenAI(base_url=${python(new URL("v1", url).href)}, api_key=${hasKey ? 'os.environ["SYRINX_API_KEY"]' : '"none"'})
with client.audio.speech.with_streaming_response.create(
${named.map(([name, value]) => `    ${name}=${python(value)},\n`).join("")}    extra_body=${withSeed(more, seed)},
) as response:
    response.stream_to_file("speech.wav")
`;
}

function words({url, fields, seed, hasKey, pace, rate}) {
  const {input, ...more} = fields, stream = new URL("v1/audio/speech/stream", url);
  stream.protocol = stream.protocol === "https:" ? "wss:" : "ws:";
  const headers = hasKey ? `, additional_headers={"Authorization": "Bearer " + os.environ["SYRINX_API_KEY"]}` : "";
  return `import asyncio
import json
${hasKey ? "import os\n" : ""}import re
import wave

import websockets

TEXT = ${python(input)}
CONFIG = ${withSeed({type: "session.config", text_mode: "tokens", ...more}, seed)}


async def write(socket):
    for word in re.findall(r"\\s*\\S+\\s*", TEXT):
        await socket.send(json.dumps({"type": "input.text", "text": word}))
        await asyncio.sleep(1 / ${pace})
    await socket.send('{"type": "input.done"}')


async def main():
    async with websockets.connect(${python(stream.href)}${headers}) as socket:
        await socket.send(json.dumps(CONFIG))
        writing = asyncio.create_task(write(socket))
        with wave.open("speech.wav", "wb") as file:
            file.setparams((1, 2, ${rate}, 0, "NONE", None))
            async for message in socket:
                if isinstance(message, bytes):
                    file.writeframes(message)
                elif json.loads(message)["type"] == "error":
                    print(message)
                elif json.loads(message)["type"] == "session.done":
                    break
        await writing


asyncio.run(main())
`;
}
