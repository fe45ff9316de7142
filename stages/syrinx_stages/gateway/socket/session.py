"""The state of one connection for text that arrives in pieces: messages in, what to do out. Pure."""

from msgspec import Struct

from syrinx_stages.gateway.errors import ApiError, bad_request
from syrinx_stages.gateway.socket.stream_messages import Place, SessionConfig, TextMode
from syrinx_stages.gateway.speech.texts import MAX_TEXT
from syrinx_stages.normalization.sentences import SentenceSplitter

MAX_UTTERANCE_TEXT = 32_768
"""Characters of an utterance that is divided into sentences."""
MAX_WAITING_TEXT = 32_768
"""Characters of sentences that are not spoken yet."""
MAX_PIECES = 16_384
"""Messages with text of an utterance."""
_REST = "end it with input.done, and send the rest as another one"


class Speak(Struct, frozen=True):
    """Speak a text that is complete."""

    place: Place
    config: SessionConfig
    text: str


class Begin(Struct, frozen=True):
    """Speak the text of the following `Feed`, while it arrives."""

    place: Place
    config: SessionConfig
    request_id: str | None = None
    """The client's name of the utterance."""


class Feed(Struct, frozen=True):
    """Add text to the utterance that has begun."""

    text: str


class EndText(Struct, frozen=True):
    """End the text of the utterance that has begun."""


class Done(Struct, frozen=True):
    """Report the end of an utterance, once all of it is spoken."""

    utterance: int
    sentences: int


Action = Speak | Begin | Feed | EndText | Done


class Session:
    """Utterances are numbered; each has the text up to `input.done`, or up to a `cancel`."""

    def __init__(self) -> None:
        self.config: SessionConfig | None = None
        self.utterance = 0
        """Number of the current utterance, or of the next one."""
        self.is_open = False
        """An utterance has text and has not ended."""
        self._splitter: SentenceSplitter
        self._sentences = self._characters = self._pieces = self._waiting = 0
        self._begun = False
        self._request_id: str | None = None

    def configure(self, config: SessionConfig) -> None:
        """Sets the configuration of the next utterances. Raises `ApiError` 400 within one."""
        self.check_between()
        self.config = config
        self._request_id = config.request_id
        self._reset()

    def resume(self, characters: int, ended: bool) -> list[Action]:
        """Continues the utterance that the configuration names, which has so many characters."""
        config = self._configured()
        self.is_open, self._begun, self._characters = True, True, characters
        begin = Begin(Place(self.utterance), config, self._take_request_id())
        return [begin, self._next()] if ended else [begin]

    def _take_request_id(self) -> str | None:
        """Returns the name of the next utterance. Those after it have none."""
        name, self._request_id = self._request_id, None
        return name

    def check_between(self) -> None:
        """Raises `ApiError` 400 within an utterance."""
        if self.is_open:
            message = "session.config cannot be applied while an utterance is in progress; send input.done first"
            raise bad_request("type", message, "utterance_in_progress")

    def add_text(self, text: str) -> list[Action]:
        """Adds text. Raises `ApiError` 400: the piece is not spoken then."""
        config = self.check_text(text)
        if not text:
            return []
        self.is_open = True
        self._characters += len(text)
        self._pieces += 1
        if config.text_mode is TextMode.TOKENS:
            feed = Feed(text)
            if self._begun:
                return [feed]
            self._begun = True
            return [Begin(Place(self.utterance), config, self._take_request_id()), feed]
        return [self._speak(sentence, config) for sentence in self._splitter.feed(text)]

    def finish(self) -> list[Action]:
        """Ends the utterance: its remaining text is spoken. Raises `ApiError` 400 without a configuration."""
        config = self._configured()
        actions: list[Action] = [self._speak(sentence, config) for sentence in self._splitter.flush()]
        if self._begun:
            actions.append(EndText())
        return [*actions, self._next()]

    def cancel(self) -> list[Action]:
        """Ends the utterance, if there is one, without its remaining text."""
        self._configured()
        return [self._next()] if self.is_open else []

    def spoken(self, text: str) -> None:
        """Records that a sentence no longer waits."""
        self._waiting -= len(text)

    def _configured(self) -> SessionConfig:
        if self.config is None:
            raise bad_request("type", "the first message must be session.config", "not_configured")
        return self.config

    def check_text(self, text: str) -> SessionConfig:
        """Returns the configuration in which a piece of text can be spoken. Raises `ApiError` 400."""
        config = self._configured()
        limit = MAX_TEXT if config.text_mode is TextMode.TOKENS else MAX_UTTERANCE_TEXT
        if self._characters + len(text) > limit:
            raise _too_much(f"an utterance has at most {limit:,} characters; {_REST}")
        if self._waiting + len(self._splitter.pending) + len(text) > MAX_WAITING_TEXT:
            raise _too_much(
                f"{self._waiting:,} characters are not spoken yet, and at most {MAX_WAITING_TEXT:,} may wait"
            )
        if self._pieces >= MAX_PIECES:
            raise _too_much(f"an utterance has at most {MAX_PIECES:,} pieces; {_REST}")
        return config

    def _speak(self, text: str, config: SessionConfig) -> Speak:
        place = Place(self.utterance, self._sentences)
        self._sentences += 1
        self._waiting += len(text)
        return Speak(place, config, text)

    def _next(self) -> Done:
        done = Done(self.utterance, self._sentences + self._begun)
        self.utterance += 1
        self._reset()
        return done

    def _reset(self) -> None:
        assert self.config is not None
        self.is_open = self._begun = False
        self._sentences = self._characters = self._pieces = 0
        self._splitter = SentenceSplitter(self.config.granularity)


def _too_much(message: str) -> ApiError:
    return bad_request("text", message, "text_too_long")
