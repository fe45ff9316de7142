"""Text normalization in English and German."""

import pytest

from training.data.corpus import Sentence
from training.data.normalize import NORMALIZERS

SPOKEN = {
    "english": [
        ('He didn\'t say "no", she thought; or did he?', 'He didn\'t say "no", she thought; or did he?'),
        ("It costs $4.50.", "It costs four dollars and fifty cents."),
        ("We paid £12.99 and €1.", "We paid twelve pounds and ninety nine pence and one euro."),
        ("It made $3.5 million.", "It made three point five million dollars."),
        ("Dr. Smith met Mrs. Jones.", "Doctor Smith met Missis Jones."),
        ("Oak St. or St. Paul?", "Oak Street or Saint Paul?"),
        ("She lives on Oak St.", "She lives on Oak Street."),
        ("Born on 3 May 1998.", "Born on the third of May nineteen ninety eight."),
        ("On May 21, 2003, it rained.", "On May twenty first, two thousand three, it rained."),
        ("In 1905 and until 2000.", "In nineteen oh five and until two thousand."),
        ("Between 1939 and 1945.", "Between nineteen thirty nine and nineteen forty five."),
        ("At 10:30 a.m. or 7:05.", "At ten thirty A M or seven oh five."),
        ("At 6:00 p.m.", "At six P M."),
        ("At 9:00 sharp.", "At nine o'clock sharp."),
        ("Call 555-0142.", "Call five five five, zero one four two."),
        ("1,250,301 people", "one million two hundred fifty thousand three hundred one people"),
        ("3.14 is 50% more.", "three point one four is fifty percent more."),
        ("The 21st, 12th and 30th.", "The twenty first, twelfth and thirtieth."),
        ("23 kg, 1 km, 6 ft", "twenty three kilograms, one kilometer, six feet"),
        ("No. 7 etc.", "number seven et cetera."),
    ],
    "german": [
        ("Es kostet 12,50 € oder 1 Euro.", "Es kostet 12 Euro 50 oder ein Euro."),
        ("1.250 € und 3,5 Mio. €", "1.250 Euro und 3,5 Millionen Euro"),
        ("Um 7:05 Uhr, 9.00 Uhr und 1:30.", "Um 7 Uhr 5, 9 Uhr und ein Uhr 30."),
        ("Am 3. Mai 1998.", "Am dritten Mai neunzehnhundertachtundneunzig."),
        ("Der 21. Dezember 2024", "Der einundzwanzigste Dezember 2024"),
        ("vom 01.12.1801", "vom ersten Dezember achtzehnhunderteins"),
        ("In der 3. Etage das 17. Mal.", "In der dritten Etage das siebzehnte Mal."),
        ("Prof. Dr. Weiß wohnt z. B. in St. Gallen.", "Professor Doktor Weiß wohnt zum Beispiel in Sankt Gallen."),
        ("In der Schulstr. 5, Zimmer Nr. 7.", "In der Schulstraße 5, Zimmer Nummer 7."),
        ("Äpfel, Birnen usw.", "Äpfel, Birnen und so weiter."),
        ("20 kg, 80 km/h, 1,75 m", "20 Kilogramm, 80 Kilometer pro Stunde, 1,75 Meter"),
        ("Er ist 12. Sie ist 1.500 m weit.", "Er ist 12. Sie ist 1.500 Meter weit."),
    ],
}


@pytest.mark.parametrize(
    ("language", "written", "spoken"), [(language, *case) for language, cases in SPOKEN.items() for case in cases]
)
def test_normalizes(language: str, written: str, spoken: str) -> None:
    assert NORMALIZERS[language](written) == spoken


def test_sentences_are_normalized_in_their_language() -> None:
    assert Sentence("Dr. No: 3.5", "english").spoken() == "Doctor No: three point five"
    assert Sentence("Dr. No: 3,5", "german").spoken() == "Doktor No: 3,5"


def test_words_are_the_spoken_words() -> None:
    assert Sentence("It's 10:30, Dr. No!", "english").words() == ("it's", "ten", "thirty", "doctor", "no")
    assert Sentence("Für 3 €, Dr. Weiß!", "german").words() == ("für", "3", "euro", "doktor", "weiß")
