"""Test utterances of voice cloning: held-out sentences by speakers that training never heard, each with a reference."""

from collections.abc import Sequence

from training.config import SynthesisConfig
from training.data import corpus, synthesis
from training.data.corpus import Sentence
from training.judging.speak import Case, Utterance

UNSEEN, CONTINUED, SEEN = "unseen", "continued", "seen"
"""Kinds of cases: the speaker embedding alone, in-context, and the speaker embedding of speakers heard in training."""
_REFERENCES = "natural"
"""The set whose sentences the references say."""
_STRIDE = 7
"""Sentences between the references of successive utterances."""

CASES = (
    *(Case(UNSEEN, streaming, name) for name in ("templates", "natural") for streaming in (False, True)),
    *(Case(CONTINUED, streaming, "templates") for streaming in (False, True)),
    Case(SEEN, False, "templates"),
)


def speakers(kind: str, config: SynthesisConfig) -> list[str]:
    """Returns the speakers of a kind of cases: those training never heard, or as many that it heard."""
    unseen = [name for name in config.speakers if name in config.unseen]
    trained = [name for name in config.speakers if name not in config.unseen]
    return trained[: len(unseen)] if kind == SEEN else unseen


def utterances(case: Case, sentences: Sequence[Sentence], config: SynthesisConfig) -> list[Utterance]:
    """Returns a case's utterances, without speech. The speakers take turns; a reference says another sentence."""
    names, texts = speakers(case.voice, config), corpus.held_out(_REFERENCES)
    made = []
    for index, sentence in enumerate(sentences):
        voice, said = names[index % len(names)], texts[(_STRIDE * index + 1) % len(texts)]
        if said == sentence:
            said = texts[(_STRIDE * index + 2) % len(texts)]
        reference = synthesis.reading(config, said, voice, config.mean_words_per_minute)
        made.append(
            Utterance(
                sentence=sentence,
                voice=voice,
                streaming=case.streaming,
                seed=index,
                reference=reference.tobytes(),
                reference_text=said.text if case.voice == CONTINUED else "",
            )
        )
    return made
