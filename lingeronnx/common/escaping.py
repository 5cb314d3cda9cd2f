"""Escape text of a model for each language that lingeronnx writes: one function per language.

Names, doc strings and metadata of a model, and file names, are arbitrary text. No other module
formats such a text for a terminal, a shell, or a file:

    plain text, terminal     escape_invisible and join_lines; escape_lines for text of several lines
    text files               escape_file_text, which `files.write_text` calls
    shell                    quote_shell, join_shell
    comments                 escape_comment: C, Makefile, CMake and shell
    C                        format_c_string, make_c_identifier, make_c_suffix
    HTML and SVG             escape_html
    JSON within HTML         dump_script_json
    Markdown                 escape_markdown, format_markdown_code
    CSV                      format_csv

The linter forbids the functions of other packages that do the same (`banned-api`).
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "dump_script_json",
    "escape_comment",
    "escape_file_text",
    "escape_html",
    "escape_invisible",
    "escape_lines",
    "escape_markdown",
    "format_c_string",
    "format_csv",
    "format_markdown_code",
    "is_invisible",
    "join_lines",
    "join_shell",
    "make_c_identifier",
    "make_c_suffix",
    "quote_shell",
]

# ---- plain text ----------------------------------------------------------------------------------

#: Unicode categories without a glyph: control, format (direction of writing), surrogate, separator.
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")


def is_invisible(character: str) -> bool:
    """Whether a character has no glyph, controls a terminal, or changes the direction of writing.

    Code points that Unicode reserves as noncharacters count, because XML forbids them.
    """
    code = ord(character)
    is_nonchar = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return is_nonchar or unicodedata.category(character) in _INVISIBLE_CATEGORIES


def escape_invisible(text: str) -> str:
    """Replace characters without a glyph, line ends included, by the escapes of a Python string.

    These are control characters, those that change the direction of writing, surrogates and so on.
    """
    return _replace_characters(text, _find_invisible(text), _escape_character)


def escape_lines(text: str) -> str:
    """Replace characters without a glyph by escapes, except line feeds and tabs.

    For text of several lines.
    """
    return _replace_characters(text, _find_invisible(text) - {"\n", "\t"}, _escape_character)


def _find_invisible(text: str) -> set[str]:
    """Return the characters of a text that have no glyph."""
    if text.isprintable():  # which no such character is
        return set()
    return {char for char in set(text) if is_invisible(char)}


def _replace_characters(text: str, characters: set[str], escape: Callable[[str], str]) -> str:
    """Replace `characters`, of which no escape has one, by their escapes."""
    for char in characters:
        text = text.replace(char, escape(char))
    return text


def join_lines(lines: Iterable[str]) -> str:
    """Join lines by line feeds, each with its line ends and invisible characters escaped.

    So a name within a line cannot begin another one.
    """
    return "\n".join(map(escape_invisible, lines))


def _escape_character(char: str) -> str:
    r"""Return the escape of a character in a Python string: \n, \x1b, \u202e."""
    return char.encode("unicode_escape").decode("ascii")


def escape_file_text(text: str) -> str:
    """Replace invisible characters except line feeds and tabs by escapes that JSON has as well.

    In JSON such characters occur within strings only, where the escape stands for the character.
    """
    return _replace_characters(text, _find_invisible(text) - {"\n", "\t"}, _escape_json_character)


def _escape_json_character(char: str) -> str:
    r"""Return the escape of a character in a JSON string: \n, \u001b, \ud83d\ude00."""
    return json.dumps(char)[1:-1]


# ---- shell ---------------------------------------------------------------------------------------


def quote_shell(word: str) -> str:
    """Quote a word for a POSIX shell.

    A word with invisible characters becomes ``$'...'``, in which bash, zsh and POSIX 2024 interpret
    escapes: copied from a terminal, it stands for the same characters.
    """
    if not any(map(is_invisible, word)):
        return shlex.quote(word)
    return f"$'{''.join(map(_escape_shell_character, word))}'"


def _escape_shell_character(char: str) -> str:
    r"""Escape a character within $'...'.

    A backslash precedes "'" and a backslash; invisible characters become octal (ASCII), \u or \U
    escapes; others are returned unchanged.
    """
    if char in "'\\":
        return f"\\{char}"
    if not is_invisible(char):
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\{code:03o}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def join_shell(words: Iterable[str]) -> str:
    """Join words to a command line for a POSIX shell, each quoted if necessary."""
    return " ".join(map(quote_shell, words))


# ---- comments and C ------------------------------------------------------------------------------


def escape_comment(text: str) -> str:
    """Return printable ASCII for a comment of C, or within a line of a ``#`` comment.

    Other characters become "?". Comment delimiters and trigraphs are broken up by a space, and a
    backslash, which continues a line, becomes "/".
    """
    printable = "".join(char if 32 <= ord(char) < 127 else "?" for char in text)
    spaced = re.sub(r"\?(?=\?)", "? ", printable.replace("\\", "/"))
    return spaced.replace("*/", "* /").replace("/*", "/ *")


def format_c_string(text: str | bytes) -> str:
    """Return a C string literal, with quotation marks, of `text` (UTF-8) or of its bytes.

    Bytes other than printable ASCII, and quotation marks, backslashes and question marks, are octal
    escapes of three digits.
    """
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in (text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
    )
    return f'"{escaped}"'


def make_c_identifier(stem: str) -> str:
    """Convert a file name to a lower-case C identifier.

    Runs of characters other than ASCII letters and digits become "_"; "m_" precedes a name that
    does not begin with a letter.
    """
    text = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_").lower()
    return text if text[:1].isalpha() else f"m_{text}".rstrip("_")


def make_c_suffix(name: str) -> str:
    """Return the characters of a name that may follow in a C identifier, at most 40.

    Runs of characters other than ASCII letters and digits become "_"; "x" if nothing is left.
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40] or "x"


# ---- HTML, SVG and JSON within them --------------------------------------------------------------


def escape_html(value: object) -> str:
    """Escape the text of any value for HTML and SVG, also within attributes.

    Characters without a glyph are shown as Python escapes.
    """
    import html  # loads a table of all entities, which only pages need

    return html.escape(escape_invisible(str(value)))


def dump_script_json(value: object) -> str:
    """Serialize JSON-ready values as compact JSON for a script element of HTML.

    "<" is escaped, so that no text can end the script. Raises ValueError for NaN and infinities.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


# ---- Markdown ------------------------------------------------------------------------------------

_MARKDOWN_MARKS = re.compile(
    r"[\\`*\[\]<&|$~@]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # an underscore between letters or digits is only itself
    r"|:(?=//)|(?<=www)\."  # addresses become links by themselves
)


def escape_markdown(text: str) -> str:
    """Escape `text` so that Markdown shows it verbatim, within a line or a table cell.

    Marks become HTML character references, characters that cannot be printed Python escapes.
    """
    escaped = _MARKDOWN_MARKS.sub(lambda match: f"&#{ord(match[0])};", text)
    return "".join(char if char.isprintable() else _escape_character(char) for char in escaped)


def format_markdown_code(text: str) -> str:
    """Format `text` as a code span, outside of tables; invisible characters are escaped.

    The fence is one backtick longer than the longest run in the text.
    """
    shown = escape_invisible(text)
    longest_run = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * (longest_run + 1)
    padding = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


# ---- CSV -----------------------------------------------------------------------------------------

#: Where a spreadsheet sees a formula: at the beginning of a cell, and after a ";", which separates
#: cells where the decimal separator is a comma. Full-width signs count.
_FORMULA = re.compile("(?:^|(?<=;))(?=\\s*[\"']*[=+\\-@\uff1d\uff0b\uff0d\uff20])")


def format_csv(rows: Iterable[Sequence[object]]) -> str:
    """Format rows of cells as CSV.

    Numbers are written as they are. Texts have invisible characters escaped, and "'" in front of
    what a spreadsheet would compute as a formula (OWASP, "CSV injection").
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        writer.writerow([_format_csv_cell(cell) for cell in row])
    return stream.getvalue()


def _format_csv_cell(value: object) -> object:
    """Convert a cell for the CSV writer: a float to its shortest exact text, None to "".

    Integers are unchanged. Texts have invisible characters escaped, and "'" in front of formulas.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, int):
        return value
    return _FORMULA.sub("'", escape_invisible(str(value)))
