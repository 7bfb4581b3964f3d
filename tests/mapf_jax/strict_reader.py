"""A second reader of answers, a scanner of single characters that shares nothing with the first."""


class Refused(Exception):
    """The text holds no answer."""


class _Scanner:
    def __init__(self, line):
        self.rest = list(reversed(line))

    def next_is(self, character):
        return bool(self.rest) and self.rest[-1] == character

    def take(self, character):
        if not self.next_is(character):
            raise Refused
        self.rest.pop()

    def integer(self):
        sign = 1
        if self.next_is("-"):
            self.rest.pop()
            sign = -1
        digits = ""
        while self.rest and "0" <= self.rest[-1] <= "9":
            digits += self.rest.pop()
        if not digits or len(digits) > 4000:
            raise Refused
        return sign * int(digits), digits

    def cell(self):
        if self.next_is(" "):
            self.rest.pop()
        self.take("(")
        row, _ = self.integer()
        self.take(",")
        if self.next_is(" "):
            self.rest.pop()
        column, _ = self.integer()
        self.take(")")
        return row, column


def _visible(text):
    """What is neither thinking nor before thinking."""
    start, stop = 0, None
    for i in range(len(text)):
        if text.startswith("</think>", i):
            start, stop = i + len("</think>"), None
        elif stop is None and text.startswith("<think>", i):
            stop = i
    return text[start:stop]


def _last_block(text):
    opened = block = None
    for i in range(len(text)):
        if text.startswith("<answer>", i):
            opened = i + len("<answer>")
        elif text.startswith("</answer>", i):
            if opened is None:
                continue
            block = text[opened:i]
    if block is None:
        raise Refused
    return block


def _lines(block):
    lines = []
    for line in block.split("\n"):
        while line and line[0] in " \t\r":
            line = line[1:]
        while line and line[-1] in " \t\r":
            line = line[:-1]
        if line:
            lines.append(line)
    if len(lines) > 1 and lines[0][:3] == lines[-1] == "```":
        if all(character.isascii() and character.isalnum() for character in lines[0][3:]):
            return lines[1:-1]
        raise Refused
    return lines


def read(text):
    """The plan in a text as [time][agent](row, column), None if a strict reader finds none."""
    try:
        plan = []
        for line in _lines(_last_block(_visible(text))):
            scanner = _Scanner(line)
            _, digits = scanner.integer()
            if digits != str(len(plan)) or line[0] == "-":
                raise Refused
            scanner.take(":")
            cells = [scanner.cell()]
            while scanner.rest:
                cells.append(scanner.cell())
            if plan and len(cells) != len(plan[0]):
                raise Refused
            plan.append(tuple(cells))
    except Refused:
        return None
    return tuple(plan) or None
