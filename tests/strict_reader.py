"""A second reader of answers, a scanner of single characters that shares nothing with the first."""

import itertools

BLANKS = "\t\r\xa0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u3000 "
HYPHENS = "-\u2010\u2011\u2012\u2013\u2212"
NOTHING = "\u200b\u2060\ufeff"
DIGITS = tuple("0123456789")
WIDE = {"\uff08": "(", "\uff09": ")", "\uff0c": ",", "\uff1a": ":", "\uff1b": ";"}


class Refused(Exception):
    """The text holds no answer."""


class _Scanner:
    def __init__(self, line):
        self.rest = list(reversed(line))

    def next_is(self, *words):
        """The first of the words that comes next, in any case; empty if none does."""
        for word in words:
            if "".join(reversed(self.rest[-len(word) :])).lower() == word:
                return word
        return ""

    def maybe(self, *words):
        word = self.next_is(*words)
        if word:
            del self.rest[-len(word) :]
        return word

    def take(self, word):
        if not self.maybe(word):
            raise Refused

    def integer(self):
        sign = -1 if self.maybe("-") else 1
        digits = ""
        while self.rest and "0" <= self.rest[-1] <= "9":
            digits += self.rest.pop()
        if not digits or len(digits) > 6:
            raise Refused
        return sign * int(digits), digits

    def time(self):
        for bullet in ("- ", "+ ", "* ", "\u2022 "):
            if self.maybe(bullet):
                break
        self.maybe("**")
        if not self.maybe("time step ", "timestep ", "time ", "step ") and self.maybe("t"):
            self.maybe(" ")
            self.maybe("=")
            self.maybe(" ")
        if self.next_is("-"):
            raise Refused
        _, digits = self.integer()
        self.maybe("**")
        self.maybe(" ")
        self.take(":")
        self.maybe("**")
        return digits

    def cell(self):
        self.maybe(" ")
        self.maybe(",", ";")
        self.maybe(" ")
        self.take("(")
        self.maybe(" ")
        row, _ = self.integer()
        self.maybe(" ")
        self.take(",")
        self.maybe(" ")
        column, _ = self.integer()
        self.maybe(" ")
        self.take(")")
        return row, column

    def ends(self):
        return "".join(reversed(self.rest)).strip(" ") in ("", ",", ";", ".")


def _visible(text):
    """What is neither thinking nor before thinking."""
    start, stop = 0, None
    for i in range(len(text)):
        if text.startswith("</think>", i):
            start, stop = i + len("</think>"), None
        elif stop is None and text.startswith("<think>", i):
            stop = i
    return text[start:stop]


def _tag(text, at):
    """(closing, end) of the tag that begins at `at`, None if none does."""
    scanner = _Scanner(text[at : at + 30])
    before = len(scanner.rest)

    def blanks():
        for _ in range(3):
            scanner.maybe(" ", "\t")

    try:
        scanner.take("<")
        blanks()
        closing = bool(scanner.maybe("/"))
        blanks()
        scanner.take("answer")
        blanks()
        scanner.take(">")
    except Refused:
        return None
    return closing, at + before - len(scanner.rest)


def _blocks(text):
    opened, blocks = None, []
    for i in range(len(text)):
        tag = _tag(text, i) if text[i] == "<" else None
        if tag is not None and not tag[0]:
            opened = tag[1]
        elif tag is not None and opened is not None:
            blocks.append(text[opened:i])
            opened = None
    return blocks


def _plain(line):
    """The line with plain hyphens and single blanks, none at its ends."""
    plain = ""
    for character in line:
        if character in BLANKS:
            plain += "" if plain.endswith(" ") else " "
        elif character not in NOTHING:
            plain += "-" if character in HYPHENS else WIDE.get(character, character)
    return plain.strip(" ")


def _lines(block):
    lines = [line for line in map(_plain, block.split("\n")) if line not in ("", "`", "*" * 2)]
    if len(lines) > 1 and lines[0][:3] == lines[-1] == "```":
        if all(character.isascii() and character.isalnum() for character in lines[0][3:]):
            return lines[1:-1]
        raise Refused
    return lines


def _plan(block):
    plan = []
    for line in _lines(block):
        scanner = _Scanner(line)
        if scanner.time() != str(len(plan)):
            raise Refused
        cells = [scanner.cell()]
        while not scanner.ends():
            cells.append(scanner.cell())
        if plan and len(cells) != len(plan[0]):
            raise Refused
        plan.append(tuple(cells))
    if not 1 <= len(plan) <= 1024:
        raise Refused
    return tuple(plan)


def _has_pair(block):
    """Whether somewhere a comma stands between two numbers of one line."""
    for line in map(_plain, block.split("\n")):
        parts = [part.strip(" ") for part in line.split(",")]
        for before, after in itertools.pairwise(parts):
            if before[-1:] in DIGITS and after.removeprefix("-")[:1] in DIGITS:
                return True
    return False


def read(text):
    """The plan in a text as [time][agent](row, column), None if a strict reader finds none."""
    for block in reversed(_blocks(_visible(text))):
        try:
            return _plan(block)
        except Refused:
            if _has_pair(block):
                break
    return None
