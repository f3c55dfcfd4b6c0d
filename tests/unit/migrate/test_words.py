"""Words of texts that bash reads."""

import pytest

from openrlhf_sagc.migrate.words import Word, cut, inner, said, substitutions, tokens


def texts(words):
    return [word.text.decode() for word in words]


def split(text):
    return tokens(text.encode(), 0, len(text.encode()))


@pytest.mark.parametrize(
    "text, words",
    [
        ("--a 1 'b c' \"d e\";f", ["--a", "1", "'b c'", '"d e"', ";", "f"]),
        ("x$(a b (c)) `d e` ${F:-g h}", ["x$(a b (c))", "`d e`", "${F:-g h}"]),
        (r"\$(a b) \"c d\"", [r"\$(a b)", r"\"c", r"d\""]),
        ("a \\\n b '", ["a", "b", "'"]),
    ],
)
def test_words_of_a_text(text, words):
    assert texts(split(text)) == words


def test_words_within_quotes_have_their_places():
    source = b"x '--a 1'"
    word = Word(2, 9, source[2:9])
    assert [(part.text, source[part.start : part.end]) for part in inner(word)] == [(b"--a", b"--a"), (b"1", b"1")]
    assert texts(inner(Word(0, 8, rb"\"--a 1\""))) == ["--a", "1"]


@pytest.mark.parametrize(
    "text, words",
    [
        ('--a 1" && ls', ["--a", "1"]),
        ("--a '' \" --b", ["--a", "''"]),
        (r"--a \"b c\" --d\"", ["--a", r"\"b", r"c\"", "--d"]),
        ("--a it's", ["--a", "it's"]),
    ],
)
def test_a_text_ends_at_its_quote(text, words):
    assert texts(cut(split(text))) == words


def test_commands_in_a_word():
    source = b"a$(b `c`)d$((1))`e`"
    assert [source[start:end] for start, end in substitutions(Word(0, len(source), source))] == [b"b `c`", b"e"]


@pytest.mark.parametrize("text", ["--a 1", '"--a 1"', r"\"--a 1\"", "--a '1'"])
def test_what_echo_says(text):
    assert texts(said(text.encode(), split(text))) == ["--a", "1"]
