"""Objects are kept for the same source, headers and flags only, and only if the compiler said
nothing.
"""

from tests.c_tools import call_or_copy, drop_optimization


def test_an_object_is_compiled_once_for_the_same_content(tmp_path):
    calls = []

    def compile_source(words):
        calls.append(words)
        (tmp_path / words[words.index("-o") + 1]).write_text(f"object {len(calls)}")
        return "a warning" if "-Wall" in words else ""

    def compile_again(*flags):
        words = [
            "cc",
            *flags,
            f"-I{tmp_path / 'include'}",
            "-c",
            "-o",
            str(tmp_path / "a.o"),
            str(tmp_path / "a.c"),
        ]
        said = call_or_copy(compile_source, tmp_path / "kept", words)
        return said, (tmp_path / "a.o").read_text()

    (tmp_path / "kept").mkdir()
    (tmp_path / "include" / "below").mkdir(parents=True)
    (tmp_path / "a.c").write_text("int a;")
    (tmp_path / "include" / "below" / "b.h").write_text("int b;")
    assert [compile_again(), compile_again()] == [("", "object 1")] * 2
    assert [compile_again("-O1"), compile_again("-O1"), compile_again()] == [
        ("", "object 2")
    ] * 2 + [("", "object 1")]
    (tmp_path / "a.c").write_text("int c;")
    assert compile_again() == ("", "object 3")
    (tmp_path / "include" / "below" / "b.h").write_text("int d;")
    assert compile_again() == ("", "object 4")
    assert [compile_again("-Wall"), compile_again("-Wall")] == [
        ("a warning", "object 5"),
        ("a warning", "object 6"),
    ]
    link = ["cc", "-o", str(tmp_path / "a.o"), "a.o", "-lm"]
    assert call_or_copy(compile_source, tmp_path / "kept", link) == ""
    assert len(calls) == 7


def test_the_first_level_of_optimization_is_dropped():
    assert drop_optimization(["cc", "-O1", "-g", "-Wall", "a.c"]) == ["cc", "-O0", "-Wall", "a.c"]
    assert drop_optimization(["cc", "-O2", "a.c"]) == ["cc", "-O2", "a.c"]
