"""Texts that nobody would write: what readers of models' and servers' output must bear."""

_PIECES = [
    "\x00", "\ud800", "\udc00\ud800", "\u202e", "\u2028", "\x85", "\ufeff", "\u0663", "😀",
    "\u200b", "\x1b[2J", "\r", "\n", "\n  ", "\t", " ", ":", ",", "-", "- ", "? ", "#", "|", ">",
    "'", '"', "%", "{", "}", "[", "]", "(", ")", "<", "&", "*", "!", "`", "```", "```yaml\n",
    "---\n", "...\n",
    "<think>", "</think>", "<answer>", "</answer>", "<|im_end|>", "<|im_start|>", "</script>",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "{{7*7}}", "{% raw %}",
    "&a [*a, *a]", "<<: *a", "!!python/object/apply:os.system ['true']", "!!binary", "=1+1",
    "0", "1", "-0", "1e308", "1e999", "-1e-400", ".inf", ".nan", "nan", "0x1F", "1_000", "9" * 400,
    "0.5", "1:30", "true", "null", "~", "(1,2)", "(0, 0)", "0:", "1:", "3", "data_ratio",
    "fraction", "{3: {data_ratio: 1}}", '{"3": {"fraction": 0.5}}', "[" * 50, "{a: " * 50,
    "a" * 2_000,
]  # fmt: skip


def hostile_text(random, examples):
    """One text: pieces strung together, characters at random, or an example with damage.

    Args:
      random: of `random.Random`.
      examples: texts as they should be.
    """
    kind = random.randrange(4)
    if kind == 0:
        return "".join(random.choice(_PIECES) for _ in range(random.randrange(60)))
    if kind == 1:
        most = random.choice((0x80, 0x3000, 0x110000))
        return "".join(chr(random.randrange(most)) for _ in range(random.randrange(80)))
    text = random.choice(examples)
    for _ in range(random.randrange(1, 4)):
        at, length = random.randrange(len(text) + 1), random.randrange(4)
        damage = random.choice(_PIECES) if random.random() < 0.6 else text[at : at + 9 * length]
        text = text[:at] + damage + text[at + length :]
    return text * random.choice((1, 1, 1, 1, 2, 30))
