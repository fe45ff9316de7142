"""The segments of a request: what is released when, what is made again, and what a successor goes on with."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, Sampling, Segment, SpeechRequest, TaskType
from syrinx_stages.normalization.durations import Bounds
from syrinx_stages.normalization.segments import Divided
from syrinx_stages.talker.speech import ATTEMPTS, BEGINNING, Fault, Speech, Take, after

TEXTS = ["One.", "Two words.", "Three more words."]
PIECES = [Divided(text, 10 * index, 10 * (index + 1), pause=0.4) for index, text in enumerate(TEXTS)]
BOUNDS = Bounds(expected=20, least=10, most=40)
REQUEST = SpeechRequest(id="r", accepted_at=0.0, text="-", task_type=TaskType.CUSTOM_VOICE, seed=5)
Frames = Callable[[SpeechRequest], tuple[int, EndReason]]


def frame(number: int) -> bytes:
    return (number % 2048).to_bytes(2, "little") * FAMILY.code_groups


def healthy(request: SpeechRequest) -> tuple[int, EndReason]:
    """An engine's frames of an attempt, and why they end: those of its seed."""
    return 15 + request.seed % 10, EndReason.STOP


def open_speech(request: SpeechRequest = REQUEST, start: int = 0, position: Segment = BEGINNING) -> Speech:
    return Speech(request, iter([piece for piece in PIECES if piece.start >= start]), lambda text: BOUNDS, position)


def generate(take: Take, frames: Frames, skipped: int = 0) -> Iterator[list[bytes] | EndReason]:
    """Yields what each frame releases, and at the end why the engine has ended the attempt."""
    count, reason = frames(take.request)
    rng = random.Random(take.request.seed)
    codes = [frame(rng.randrange(2048)) for _ in range(min(count, take.request.max_frames))]
    for each in codes[skipped:]:
        yield take.add(each)
        if take.fault is not None:
            yield EndReason.STOP
            return
    yield reason if count <= take.request.max_frames else EndReason.LENGTH


def run(speech: Speech, frames: Frames = healthy) -> tuple[list[bytes], list[Segment]]:
    """Returns all that is released, and the segments whose frames came at once."""
    released: list[bytes] = []
    whole = []
    while (take := speech.begin()) is not None:
        for step in generate(take, frames):
            if not isinstance(step, EndReason):
                released += step
            elif (closed := speech.close(step)) is not None:
                released += closed.frames
                whole += [closed.whole] if closed.whole is not None else []
    return released, whole


def test_each_segment_is_a_request_of_its_own_for_the_engine() -> None:
    speech, seen = open_speech(), []
    run(speech, lambda request: (seen.append(request), healthy(request))[1])
    assert [request.text for request in seen] == TEXTS
    assert len({request.id for request in seen}) == len({request.seed for request in seen}) == 3
    assert (seen[0].id, seen[0].seed) == ("r", 5)
    assert all(0 <= request.seed < 2**63 for request in seen)
    assert (speech.end().reason, speech.end().retries) == (EndReason.STOP, 0)


def test_the_first_segment_of_a_stream_is_released_at_once_and_others_when_they_are_complete() -> None:
    speech = open_speech()
    steps = list(generate(speech.begin(), healthy))
    assert all(len(step) == 1 for step in steps[:-1])
    assert speech.close(steps[-1]).frames == []
    steps = list(generate(speech.begin(), healthy))
    assert all(step == [] for step in steps[:-1])
    closed = speech.close(steps[-1])
    assert len(closed.frames) == len(steps) - 1
    assert (closed.whole.number, closed.whole.start, closed.whole.end, closed.whole.is_whole) == (1, 10, 20, True)
    assert closed.whole.frames == len(list(generate(open_speech().begin(), healthy))) - 1


def test_a_first_segment_is_released_beyond_its_usual_duration_only_if_it_ends() -> None:
    def spoken(count: int) -> list[bytes]:
        speech = open_speech()
        steps = [*generate(speech.begin(), lambda request: (count, EndReason.STOP))]
        return [frame for frames in steps[:-1] for frame in frames] + speech.close(steps[-1]).frames

    assert [len(spoken(count)) for count in (12, BOUNDS.usual, 39, 60)] == [12, BOUNDS.usual, 39, BOUNDS.usual]


@pytest.mark.parametrize("known", [0, 10, 30])
def test_the_cut_of_text_that_streams_in_does_not_depend_on_when_its_end_was_known(known: int) -> None:
    take, released = Take(REQUEST, None, streams=True), 0
    for number in range(30 + BOUNDS.expected + 1):
        if number == known:
            take.bound(BOUNDS, frames=30)
        assert take.fault is None
        released += len(take.add(frame(number)))
    assert (take.fault, released) == (Fault.LONG, 30)


def test_nothing_of_a_file_is_released_before_its_segment_is_complete() -> None:
    _, whole = run(open_speech(structs.replace(REQUEST, live=False)))
    assert [segment.number for segment in whole] == [0, 1, 2]


def test_without_checks_all_is_released_at_once_and_nothing_is_wrong() -> None:
    speech = open_speech(structs.replace(REQUEST, checks=False))
    released, whole = run(speech, lambda request: (3, EndReason.STOP))
    assert (len(released), whole, speech.end().reason) == (9, [], EndReason.STOP)


@pytest.mark.parametrize(
    ("count", "reason", "fault"),
    [(9, EndReason.STOP, Fault.SHORT), (60, EndReason.STOP, Fault.LONG), (41, EndReason.LENGTH, Fault.LONG)],
)
def test_a_segment_that_went_wrong_is_made_again(count: int, reason: EndReason, fault: Fault) -> None:
    faults = []

    def once(request: SpeechRequest) -> tuple[int, EndReason]:
        if request.id == "r/1.0":
            return count, reason
        return healthy(request)

    speech = open_speech()
    while (take := speech.begin()) is not None:
        *_, end = generate(take, once)
        speech.close(end)
        faults.append(take.fault)
    assert faults == [None, fault, None, None]
    assert (speech.end().reason, speech.end().retries, speech.end().incomplete) == (EndReason.STOP, 1, ())


@pytest.mark.parametrize("pattern", [[1], [1, 2, 3]])
def test_a_repetition_is_a_fault(pattern: list[int]) -> None:
    take = open_speech().begin()
    released = []
    for number in pattern * 40:
        released += take.add(frame(number))
        if take.fault is not None:
            break
    assert take.fault in (Fault.LOOP, Fault.SILENCE)
    assert len(released) == take.released == take.length < 20


def test_if_no_attempt_is_complete_the_best_one_is_taken_and_the_end_says_so() -> None:
    counts = {"r/1.0": 3, "r/1.1": 8, "r/1.2": 5}

    def short(request: SpeechRequest) -> tuple[int, EndReason]:
        return (counts[request.id], EndReason.STOP) if request.id in counts else healthy(request)

    speech = open_speech()
    _, (second, third) = run(speech, short)
    assert third.frames - second.frames == 8
    assert (second.retries, second.incomplete) == (ATTEMPTS - 1, ((10, 20),))
    end = speech.end()
    assert (end.reason, end.retries, end.incomplete) == (EndReason.INCOMPLETE, 2, ((10, 20),))


def test_an_attempt_that_ended_by_itself_is_better_than_one_that_was_stopped() -> None:
    takes = []
    for count in (3, 60):
        takes.append(open_speech(structs.replace(REQUEST, live=False)).begin())
        *_, reason = generate(takes[-1], lambda request, count=count: (count, EndReason.STOP))
        takes[-1].end(reason)
    short, long = takes
    assert short.rank < long.rank


def test_a_first_segment_that_is_heard_is_not_made_again() -> None:
    speech = open_speech()
    _, (second, _) = run(speech, lambda request: (60, EndReason.STOP) if request.id == "r" else healthy(request))
    assert second.frames == BOUNDS.usual, "it ends at a frame that follows from its frames alone"
    assert (speech.end().reason, speech.end().incomplete) == (EndReason.INCOMPLETE, ((0, 10),))


def test_another_seed_cannot_help_greedy_decoding() -> None:
    greedy = structs.replace(REQUEST, sampling=Sampling(temperature=0, residual_temperature=0))
    speech = open_speech(greedy)
    run(speech, lambda request: (3, EndReason.STOP))
    assert (speech.end().retries, len(speech.end().incomplete)) == (0, 3)


FIRST = healthy(REQUEST)[0]


@pytest.mark.parametrize(
    ("total", "frames", "reason"),
    [(FIRST, FIRST, EndReason.LENGTH), (25, 25, EndReason.LENGTH), (1000, None, EndReason.STOP)],
)
def test_a_clients_limit_is_that_of_all_segments(total: int, frames: int | None, reason: EndReason) -> None:
    speech = open_speech(structs.replace(REQUEST, total_frames=total))
    released, _ = run(speech)
    assert speech.end().reason is reason
    assert frames is None or len(released) == frames


def random_frames(request: SpeechRequest) -> tuple[int, EndReason]:
    """An engine that goes wrong in a third of all attempts."""
    rng = random.Random(request.seed)
    return rng.choice([rng.randint(1, 9), *[rng.randint(10, 40)] * 4, 60]), EndReason.STOP


@given(st.integers(0, 2**63 - 1), st.booleans(), st.booleans(), st.data())
def test_a_successor_goes_on_with_the_same_frames(seed: int, live: bool, checks: bool, data: st.DataObject) -> None:
    """Wherever the owner before was killed: the audio and the end are functions of the request alone."""
    request = structs.replace(REQUEST, seed=seed, live=live, checks=checks)
    speech = open_speech(request)
    expected, _ = run(speech, random_frames)
    # What an owner writes: the released frames, each with its segment as an entry names it.
    written: list[tuple[Segment, list[bytes]]] = []
    owner = open_speech(request)
    while (take := owner.begin()) is not None:
        segment, found = owner.segment, []
        for step in generate(take, random_frames):
            if isinstance(step, EndReason):
                closed = owner.close(step)
                if closed is not None:
                    written.append((closed.whole or segment, found + closed.frames))
            else:
                found += step
    total = sum(len(frames) for _, frames in written)
    killed = data.draw(st.integers(0, total))
    kept, position, current = 0, BEGINNING, []
    for segment, frames in written:
        if segment.is_whole and kept + len(frames) <= killed:
            kept, position, current = kept + len(frames), after(segment, len(frames)), []
        elif not segment.is_whole and kept < killed:
            current = frames[: killed - kept]
            kept, position = kept + len(current), segment
        if kept < segment.frames + len(frames):
            break
    before = [frame for _, frames in written for frame in frames][:kept]
    successor = open_speech(request, position.start, position)
    released = list(before)
    skipped = len(current)
    while (take := successor.begin()) is not None:
        take.replay(current)
        current = []
        for step in generate(take, random_frames, skipped):
            if not isinstance(step, EndReason):
                released += step
            elif (closed := successor.close(step)) is not None:
                released += closed.frames
        skipped = 0
    assert released == expected
    assert successor.end() == speech.end()
