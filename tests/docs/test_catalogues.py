"""The Chinese catalogues: what is declared translated is, whole and up to date; the parser reads
gettext.
"""

import re

from docs.pages.catalogues import (
    CHOSEN,
    DOCS,
    LOCALE,
    Entry,
    entries,
    faults,
    messages,
    same_in_all,
    settled,
)
from tests.each import check_each

#: Pages whose Chinese is always whole. Of others, what is not translated shows in English.
FIRST = {"index", "tutorials/first-model", "tutorials/own-model"}
#: Messages that may be open on a page: `errors` is generated from the code, and a message more is no translator's slip.
OPEN = {"reference/errors": 25}

DONE = [
    line
    for line in (DOCS / "locale" / "translated.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PAGE = """# A title

One paragraph of
two lines with `code` and a [link](x.md).

    lingeronnx demo

| a | `b` |
|---|---|
| 1.5 | ![a picture](p.png) |

- an item, "quoted"
"""
CATALOGUE = """# about
#, fuzzy
msgid ""
msgstr ""
"POT-Creation-Date: 2026\\n"
"Language: zh_CN\\n"

msgid "A title"
msgstr "标题"

#, fuzzy
msgid "One paragraph of two lines with `code` and a [link](x.md)."
msgstr "一"
" 段"

msgid "an item, \\"quoted\\""
msgstr ""

msgid "`b`"
msgstr ""

#~ msgid "gone"
#~ msgstr "没了"
"""


def read(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8"), (LOCALE / f"{name}.po").read_text(
        encoding="utf-8"
    )


def test_a_translated_page_is_whole():
    def check(name):
        remaining = faults(*read(name))
        if name in OPEN:
            remaining = [line for line in remaining if not line.startswith("no longer there")]
        assert remaining[OPEN.get(name, 0) :] == []

    check_each(check, DONE)  # run `make docs-catalogs` and translate what it leaves open


def test_a_translation_keeps_code_and_links():
    """Each message has the code, the figures and the targets of links that its English has."""

    def check_message(entry):
        for pattern in (r"`([^`]+)`", r"\]\(([^)]+)\)"):
            english, chinese = (re.findall(pattern, t) for t in (entry.message, entry.translation))
            assert sorted(english) == sorted(chinese)
        is_name = entry.translation == entry.message and " " not in entry.message
        if not is_name and not same_in_all(entry.message):
            assert re.search(r"[\u4e00-\u9fff]", entry.translation)

    messages_of_pages = []
    for name in DONE:
        for entry in entries(read(name)[1]):
            is_open = name in OPEN and (entry.fuzzy or not entry.translation)
            if not is_open:
                messages_of_pages.append(entry)
    check_each(check_message, messages_of_pages)


def test_each_chosen_page_has_its_catalogue_and_the_first_are_whole():
    assert [name for name in CHOSEN if not (LOCALE / f"{name}.po").is_file()] == []
    assert set(DONE) <= set(CHOSEN)
    assert set(DONE) >= FIRST


def test_messages_of_a_page():
    want = [
        "A title",
        "One paragraph of two lines with `code` and a [link](x.md).",
        "a",
        "`b`",
        "1.5",
    ]
    assert messages(PAGE) == [*want, "![a picture](p.png)", "a picture", 'an item, "quoted"']
    assert messages("```{toctree}\n:caption: First\n\nx\n```\n") == ["First"]


def test_entries_of_a_catalogue():
    title, paragraph, item, code = entries(CATALOGUE)
    assert title == Entry("A title", "标题", False)
    assert (paragraph.translation, paragraph.fuzzy) == ("一 段", True)
    assert (item.message, item.translation, item.fuzzy) == ('an item, "quoted"', "", False)
    assert code.message == "`b`"


def test_faults_of_a_catalogue():
    found = faults(PAGE, CATALOGUE)
    assert 'not translated: an item, "quoted"' in found
    assert "not translated: ![a picture](p.png)" in found
    assert any(line.startswith("changed since: One paragraph") for line in found)
    assert faults(
        "# A title\n", 'msgid "A title"\nmsgstr "标题"\n\nmsgid "Old"\nmsgstr "旧"\n'
    ) == ["no longer there: Old"]


def test_settled_fills_what_is_the_same_and_drops_dates():
    text = settled(CATALOGUE)
    assert "POT-Creation-Date" not in text
    assert 'msgid "`b`"\nmsgstr "`b`"' in text
    assert (
        settled('msgid ""\n\n#, fuzzy\nmsgid "1.5"\nmsgstr "1.4"\n')
        == 'msgid ""\n\nmsgid "1.5"\nmsgstr "1.5"\n'
    )
    assert settled(text) == text
    assert [same_in_all(text) for text in ("`a b` 1.5 %", "12", "dB")] == [True, True, False]
