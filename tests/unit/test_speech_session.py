"""The state of a connection: messages in, what to do out."""

import json

import pytest

from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.socket.session import MAX_PIECES, Begin, Done, EndText, Feed, Session, Speak
from syrinx_stages.gateway.socket.stream_messages import Place, parse_config, parse_message


def session(**config: object) -> Session:
    made = Session()
    made.configure(parse_config(json.dumps({"type": "session.config", **config})))
    return made


def spoken(actions: list) -> list[tuple[Place, str]]:
    return [(action.place, action.text) for action in actions if isinstance(action, Speak)]


def test_sentences_are_spoken_when_they_are_complete() -> None:
    state = session()
    assert state.add_text("One. Tw") == [Speak(Place(0, 0), state.config, "One.")]
    assert state.is_open
    assert spoken(state.finish()) == [(Place(0, 1), "Tw")]
    assert state.add_text("Three") == []
    [speak, done] = state.finish()
    assert (speak.place, done) == (Place(1, 0), Done(1, 1))
    assert state.finish() == [Done(2, 0)]


def test_tokens_are_one_utterance() -> None:
    state = session(text_mode="tokens")
    config = state.config
    assert state.add_text("One. T") == [Begin(Place(0), config), Feed("One. T")]
    assert state.add_text("wo") == [Feed("wo")]
    assert state.finish() == [EndText(), Done(0, 1)]
    assert state.add_text("x") == [Begin(Place(1), config), Feed("x")]


def test_cancel_ends_the_utterance_without_its_rest() -> None:
    state = session()
    state.add_text("One. Two")
    assert state.cancel() == [Done(0, 1)]
    assert state.cancel() == []
    assert spoken(state.add_text("Three. ")) == [(Place(1, 0), "Three.")]


def test_the_configuration_cannot_change_within_an_utterance() -> None:
    state = session()
    state.add_text("One")
    with pytest.raises(ApiError, match="in progress"):
        state.configure(parse_config('{"type": "session.config"}'))
    state.finish()
    state.configure(parse_config('{"type": "session.config"}'))


def test_limits() -> None:
    state = session(text_mode="tokens")
    state.add_text("x" * 4096)
    with pytest.raises(ApiError, match="4,096 characters") as error:
        state.add_text("x")
    assert error.value.param == "text"
    state.finish()
    for _ in range(4096):
        state.add_text("x")
    state = session(split_granularity="none")
    state.add_text("x" * 4097)
    state = session()
    with pytest.raises(ApiError, match="32,768 characters"):
        state.add_text("x" * 32_769)
    state.add_text("One. " * 6000)
    state.finish()
    with pytest.raises(ApiError, match="not spoken yet"):
        state.add_text("One. " * 6000)
    state = session()
    for _ in range(MAX_PIECES):
        state.add_text(" ")
    with pytest.raises(ApiError, match="pieces"):
        state.add_text(" ")


def test_a_configuration_has_the_fields_of_a_request_and_the_defaults_of_its_mode() -> None:
    config = parse_config(json.dumps({"type": "session.config", "speaker": "us", "stream_audio": None, "input": None}))
    assert (config.fields.voice, config.stream_audio, config.fields.stream) == ("us", False, False)
    fields = parse_config(json.dumps({"type": "session.config", "text_mode": " TOKENS"})).fields
    assert (fields.response_format, fields.stream, fields.non_streaming_mode) == ("pcm", True, False)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"streaming_mode": "token_level"}, "tokens"),
        ({"streaming_mode": "sentence"}, "sentences"),
        ({"streaming_mode": "token_level", "text_mode": "tokens"}, "tokens"),
        ({"streaming_mode": None}, "sentences"),
    ],
)
def test_the_text_mode_may_have_the_name_that_vllm_omni_gives_it(config: dict[str, object], mode: str) -> None:
    assert parse_config(json.dumps({"type": "session.config", **config})).text_mode == mode


def test_a_field_of_requests_that_asks_for_nothing_is_accepted() -> None:
    asked = {"stream": False, "stream_format": "", "input": "", "word_timestamps": "false"}
    plain, config = ({"type": "session.config", **fields} for fields in ({}, asked))
    assert parse_config(json.dumps(config)) == parse_config(json.dumps(plain))


@pytest.mark.parametrize("named", [{}, {"text": None}, {"delta": "Hi."}, {"input": "Hi."}], ids=str)
def test_a_piece_has_its_text_in_the_field_text(named: dict[str, object]) -> None:
    with pytest.raises(ApiError, match="text: is required: the next piece of the text"):
        parse_message(json.dumps({"type": "input.text", **named}))
    assert parse_message('{"type": "input.text", "text": ""}').text == ""


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"text_mode": "x"}, "text_mode"),
        ({"streaming_mode": "sentence_commit"}, "streaming_mode"),
        ({"streaming_mode": "token_level", "text_mode": "sentences"}, "streaming_mode"),
        ({"session": {}, "voice": "us"}, "session"),
        ({"session": "us"}, "session"),
        ({"session": {"sped": 1}}, "sped"),
        ({"split_granularity": "word"}, "split_granularity"),
        ({"text_mode": "tokens", "split_granularity": "clause"}, "split_granularity"),
        ({"text_mode": "tokens", "non_streaming_mode": True}, "non_streaming_mode"),
        ({"text_mode": "tokens", "stream_audio": False}, "stream_audio"),
        ({"stream": "true"}, "stream"),
        ({"input": "x"}, "input"),
        ({"word_timestamps": True}, "word_timestamps"),
        ({"voice": "us", "speaker": "gb"}, "speaker"),
        ({"text": "x"}, "text"),
        ({"seed": -2}, "seed"),
        ({"sped": 1}, "sped"),
    ],
)
def test_invalid_configurations_name_the_field(config: dict[str, object], field: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_config(json.dumps({"type": "session.config", **config}))
    assert error.value.param == field
