"""Programs that read a response from a pipe or write it to a file, and Ctrl-C. Argument: which program."""

import json
import signal
import subprocess
import sys
import time

from report import API_URL, OUT, TEXT, Case, Report

RATE = "24000"


def curl(text: str = TEXT, **fields: str) -> list[str]:
    """The command that asks for speech."""
    body = json.dumps({"input": text, **fields})
    headers = ["--header", "Content-Type: application/json", "--data", body]
    return ["curl", "--silent", "--show-error", "--fail-with-body", "--no-buffer", f"{API_URL}/audio/speech", *headers]


def read(case: Case, source: list[str], player: list[str]) -> None:
    """Pipes a response into a program that writes samples to its output."""
    with subprocess.Popen(source, stdout=subprocess.PIPE) as sending:
        with subprocess.Popen(player, stdin=sending.stdout, stdout=subprocess.PIPE) as playing:
            audio = b""
            while piece := playing.stdout.read1():
                case.hear()
                audio += piece
        assert playing.returncode == 0, f"{player[0]} ended with {playing.returncode}"
    assert sending.returncode == 0, f"curl ended with {sending.returncode}"
    case.save(audio, "pcm", int(RATE))


def pipe(report: Report, formats: tuple[str, ...], player: str) -> None:
    for name in formats:
        with report.case(f"{name} from a pipe") as case:
            read(case, curl(response_format=name), player.replace("FORMAT", name).split())


def file(report: Report) -> None:
    for name in FORMATS:
        with report.case(f"{name} to a file") as case:
            subprocess.run([*curl(response_format=name), "--output", str(OUT / "file")], check=True)
            case.save((OUT / "file").read_bytes(), name)


def interrupt(report: Report) -> None:
    with report.case("Ctrl-C") as case:
        case.whole = False
        # Of a shell's job in the background it would be ignored, also by curl.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Too long to be sent before the signal: the gateway does not get further ahead than eight seconds.
        with subprocess.Popen([*curl(f"{TEXT} {TEXT} {TEXT}"), "--output", str(OUT / "part")]) as sending:
            while not (OUT / "part").is_file() or (OUT / "part").stat().st_size < 50_000:
                time.sleep(0.01)
            sending.send_signal(signal.SIGINT)
        case.save((OUT / "part").read_bytes(), "wav")


PLAYERS = {
    "ffmpeg": f"ffmpeg -v error -i pipe:0 -ac 1 -ar {RATE} -f s16le pipe:1",
    "sox": f"sox -V1 -t FORMAT - -t raw -e signed -b 16 -c 1 -r {RATE} -",
    "mpv": f"mpv --no-config --no-terminal --no-video --audio-samplerate={RATE} --audio-format=s16"
    " --ao=pcm --ao-pcm-waveheader=no --ao-pcm-file=/dev/stdout -",
}
"""Commands that play their input as 16-bit samples to their output."""
FORMATS = ("wav", "mp3", "opus", "flac", "aac")
SOX_FORMATS = ("wav", "mp3", "flac")


def main(program: str) -> None:
    report = Report()
    if program == "curl":
        file(report)
        interrupt(report)
    else:
        pipe(report, SOX_FORMATS if program == "sox" else FORMATS, PLAYERS[program])
    report.write()


main(sys.argv[1])
