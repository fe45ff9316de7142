"""A bot of Pipecat that speaks with Syrinx. Its LLM and speech recognition have OpenAI's API: LLM_URL, STT_URL."""

import os

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner
from syrinx_pipecat import SyrinxTTSService

KEY = os.environ.get("OPENAI_API_KEY", "none")
PROMPT = "You are heard, not read: answer in short sentences."


async def bot(arguments: RunnerArguments) -> None:
    """Talks to the browser that has connected."""
    parameters = {"webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True)}
    transport = await create_transport(arguments, parameters)
    worker = PipelineWorker(pipeline(transport), params=PipelineParams(enable_metrics=True))

    @transport.event_handler("on_client_connected")
    async def on_client_connected(*_: object) -> None:
        await worker.queue_frame(TTSSpeakFrame("Hello, how can I help?"))

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    await WorkerRunner(handle_sigint=False).run(worker)


def pipeline(transport: BaseTransport) -> Pipeline:
    """Returns speech recognition, the LLM and Syrinx between the transport's ends."""
    llm = OpenAILLMService(
        api_key=KEY,
        base_url=os.environ.get("LLM_URL"),
        settings=OpenAILLMService.Settings(model=os.environ.get("LLM", "gpt-4o-mini"), system_instruction=PROMPT),
    )
    stt = OpenAISTTService(api_key=KEY, base_url=os.environ.get("STT_URL"))
    tts = SyrinxTTSService(
        base_url=os.environ.get("SYRINX_URL", "http://localhost:8000/v1"),
        settings=SyrinxTTSService.Settings(voice="us"),
    )
    context = LLMContextAggregatorPair(
        LLMContext(), user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    return Pipeline([transport.input(), stt, context.user(), llm, tts, transport.output(), context.assistant()])


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
