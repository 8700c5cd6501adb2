"""What memories are found by, in any writing: their words, and every two neighbours where words have no spaces."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flightlog_plugins.memory import Remembered
from flightlog_plugins.memory.index import WordIndex
from support.memory_folder import subfolder


def letters(*ranges: tuple[int, int]) -> str:
    """The letters and marks between these characters."""
    every = (chr(code) for first, last in ranges for code in range(first, last + 1))
    return "".join(char for char in every if unicodedata.category(char)[0] in "LM")


SPACED = {
    "latin": letters((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x300, 0x30C)),
    "greek": letters((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "cyrillic": letters((0x400, 0x4FF)),
    "hebrew": letters((0x591, 0x5EA)),
    "arabic": letters((0x620, 0x6D3)),
    "devanagari": letters((0x900, 0x957)),
    "tamil": letters((0xB80, 0xBD7)),
    "wide": letters((0xFF21, 0xFF3A), (0xFF41, 0xFF5A)),
}
UNSPACED = {
    "thai": letters((0xE01, 0xE4E)),
    "lao": letters((0xE81, 0xECD)),
    "khmer": letters((0x1780, 0x17D3)),
    "burmese": letters((0x1000, 0x1049)),
    "japanese": letters((0x3041, 0x30FF), (0xFF66, 0xFF9D)),
    "chinese": letters((0x4E00, 0x4EFF), (0x20000, 0x2000F)),
    "korean": letters((0xAC00, 0xAC80)),
}
VARIANTS: list[Callable[[str], str]] = [
    str,
    str.upper,
    str.casefold,
    str.title,
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFKC", text),
    lambda text: "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text),
]


def written(alphabet: str, most: int) -> st.SearchStrategy[str]:
    """A run of these letters that begins with none of the marks, which could stand behind anything."""
    run = st.text(alphabet, min_size=2, max_size=most)
    return run.filter(lambda text: unicodedata.category(text[0]).startswith("L"))


words = st.sampled_from(sorted(SPACED.values())).flatmap(lambda alphabet: written(alphabet, 10))
runs = st.sampled_from(sorted(UNSPACED.values())).flatmap(lambda alphabet: written(alphabet, 20))


def found(folder: Path, text: str, query: str) -> bool:
    """Whether an index of this text alone finds it by the query."""
    index = WordIndex(str(subfolder(folder) / "memory.db"))
    memory = Remembered(kind="knowledge", text=text, session="s", at_us=0)
    index.rebuild(lambda writer: writer.add(memory, ""))
    return index.search(query, subject="", beside="", limit=5) == [memory]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(words | runs, max_size=3), word=words, after=st.lists(words | runs, max_size=3), data=st.data())
def test_every_word_finds_what_holds_it_however_it_is_written(
    tmp_path: Path, before: list[str], word: str, after: list[str], data: st.DataObject
) -> None:
    remembered, asked = (data.draw(st.sampled_from(VARIANTS)) for _ in range(2))
    assert found(tmp_path, remembered(" ".join([*before, word, *after])), asked(word))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs, around=st.text(" a1.,", max_size=3), data=st.data())
def test_every_two_neighbours_find_what_holds_them_where_words_have_no_spaces(
    tmp_path: Path, run: str, around: str, data: st.DataObject
) -> None:
    remembered, asked = (data.draw(st.sampled_from(VARIANTS)) for _ in range(2))
    run = unicodedata.normalize("NFKC", run)  # which two are neighbours is a matter of how marks are put in order
    assume(len(run) > 1)
    pair = "".join(data.draw(st.sampled_from(list(pairwise(run)))))
    assert found(tmp_path, remembered(around + run + around), asked(pair))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs, data=st.data())
def test_every_part_of_a_run_finds_the_whole(tmp_path: Path, run: str, data: st.DataObject) -> None:
    run = unicodedata.normalize("NFKC", run)
    start = data.draw(st.integers(0, len(run) - 1))
    end = data.draw(st.integers(start + 1, len(run)))
    assert found(tmp_path, run, run[start:end])


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("ฐานข้อมูลทดสอบชื่อเฮรอน", "ฐานข้อมูลอยู่ที่ไหน"),
        ("ຖານຂໍ້ມູນຊື່ນົກ", "ຖານຂໍ້ມູນ"),
        ("ឈ្មោះមូលដ្ឋានទិន្នន័យ", "ទិន្នន័យ"),
        ("ဒေတာဘေ့စ်၏အမည်", "ဒေတာဘေ့စ်"),
        ("डेटाबेस का नाम हेरॉन है", "डेटाबेस"),
        ("اسم قاعِدَة البيانات", "قاعدة"),
        ("شماره می‌خواهم", "میخواهم"),
        ("ישראל עִבְרִית", "עברית"),
        ("Isparta", "\u0131sparta"),
        ("İstanbul", "istanbul"),
        ("soft\u00adware", "software"),
        ("Straße", "STRASSE"),
    ],
)
def test_one_spelling_finds_the_other(tmp_path: Path, text: str, query: str) -> None:
    assert found(tmp_path, text, query)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("हिन्दी", "दिन"),  # cut at their signs, both would have the letters द and न
        ("நிரல்", "நகரம்"),
        ("ฐานข้อมูล", "ข้าวผัดอร่อย"),  # they share the pair ข้, but no three neighbours
    ],
)
def test_words_that_only_share_some_letters_find_nothing(tmp_path: Path, text: str, query: str) -> None:
    assert not found(tmp_path, text, query)
