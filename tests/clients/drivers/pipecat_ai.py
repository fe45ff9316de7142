"""Pipecat: OpenAITTSService in a pipeline of its own, with the settings it has by default."""

import asyncio

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService
from report import API_URL, TEXT, Case, Report


class Recorder(FrameProcessor):
    """Keeps the audio that passes."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case
        self.audio = b""
        self.rate = 0
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._case.hear()
            self.audio += frame.audio
            self.rate = frame.sample_rate
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


async def main() -> None:
    report = Report()
    with report.case("TTSSpeakFrame in a pipeline") as case:
        recorder = Recorder(case)
        tts = OpenAITTSService(base_url=API_URL, api_key="none")
        task = PipelineTask(Pipeline([tts, recorder]))
        await task.queue_frames([TTSSpeakFrame(TEXT), EndFrame()])
        await PipelineRunner(handle_sigint=False).run(task)
        assert not recorder.errors, recorder.errors
        case.save(recorder.audio, "pcm", recorder.rate)
    report.write()


asyncio.run(main())
