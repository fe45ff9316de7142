"""An agent of LiveKit that speaks with Syrinx. Its LLM and speech recognition have OpenAI's API: LLM_URL, STT_URL."""

import os

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, cli
from livekit.plugins import openai
from syrinx_livekit import TTS, Interrupted

KEY, OPENAI = os.environ.get("OPENAI_API_KEY", "none"), "https://api.openai.com/v1"
server = AgentServer()


@server.rtc_session()
async def talk(context: JobContext) -> None:
    """Talks to the participant of a room, or to the terminal."""
    tts = TTS(base_url=os.environ.get("SYRINX_URL", "http://localhost:8000/v1"), voice="us")

    @tts.on("interrupted")
    def on_interrupted(speech: Interrupted) -> None:
        print("interrupted after:", speech.text[: speech.spoken_characters])

    llm_url, stt_url = os.environ.get("LLM_URL", OPENAI), os.environ.get("STT_URL", OPENAI)
    session: AgentSession[None] = AgentSession(
        llm=openai.LLM(model=os.environ.get("LLM", "gpt-4o-mini"), base_url=llm_url, api_key=KEY),
        stt=openai.STT(model=os.environ.get("STT", "whisper-1"), base_url=stt_url, api_key=KEY),
        tts=tts,
    )
    await session.start(Agent(instructions="You are heard, not read: answer in short sentences."), room=context.room)
    await session.say("Hello, how can I help?")


if __name__ == "__main__":
    cli.run_app(server)
