"""Search of the Chinese site: how text is cut into terms, and that the field's words are found."""

import json
import re
import shutil
import subprocess

import pytest

from docs.pages.catalogues import CHOSEN, LOCALE, entries
from docs.pages.chinese_search import TERM, format_query_splitter, split_terms
from tests.each import check_each

#: Words that readers of vendors' Chinese documents type.
QUERIES = (
    "定点",
    "逐层",
    "流式",
    "校准集",
    "模拟器",
    "二的幂",
    "逐通道",
    "量化参数",
    "校准数据",
    "训练后量化",
)
TEXTS = (
    "量化参数 q = round(x * scale)",
    "在 arcs 上，`--calib DATA` 给出校准集。",
    "幂",
    "二 的幂",
    "",
)


def test_text_is_cut_into_pairs_and_words():
    assert split_terms("量化参数") == ["量化", "化参", "参数"]
    assert split_terms("在 arcs 上用 int8_t：定点") == ["arcs", "上用", "int8_t", "定点"]
    assert split_terms("幂") == []


def test_words_of_the_field_are_in_the_translated_pages():
    terms_of_pages = [
        {
            term
            for entry in entries((LOCALE / f"{page}.po").read_text(encoding="utf-8"))
            for term in split_terms(entry.translation)
        }
        for page in CHOSEN
    ]

    def check_query(query):
        terms = set(split_terms(query))
        assert [page for page in terms_of_pages if terms <= page] != []

    check_each(check_query, QUERIES)


def test_the_script_of_the_site_has_the_pattern():
    quoted = re.search(r"new RegExp\((\".*\"), 'g'\)", format_query_splitter())[1]
    assert json.loads(quoted) == TERM


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_cuts_as_the_index_does():
    script = f"{format_query_splitter()}\nconsole.log(JSON.stringify({json.dumps(TEXTS)}.map(splitQuery)))"
    command = ["node", "-e", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [split_terms(text) for text in TEXTS]
