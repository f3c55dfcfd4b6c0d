r"""What a response answers: its last box, or what follows its last `####` or `Answer:`; a megabyte takes a second at most."""

import re

TOKEN = re.compile(
    r"(?s)(?P<box>\\{1,2}(?:boxed|fbox|framebox)(?![A-Za-z])\s*)(?P<brace>\{)?"
    r"|(?P<bare>\x08oxed\s*\{|(?<![A-Za-z\\])(?:boxed|framebox)\s*\{)|\\.|[{}]"
)
ARGUMENT = re.compile(r"[+-]?\d[\d.,]*(?<=\d)|\\[a-zA-Z]+(?:\{[^{}]{0,200}\}){0,2}|[A-Za-z](?![A-Za-z])")
GAP = r"(?:[\s$~*]|\\[,;: ()\[\]]|\\\\|\\q?quad(?![A-Za-z]))*"
JOINER = r"(?:\\(?:text|mbox|mathrm)\s*\{)?\s*(?:[,;&]\s*(?:and|or)?|and|or)(?![A-Za-z])\s*\}?"
BETWEEN = re.compile(rf"{GAP}(?P<joiner>{JOINER}{GAP})?(?:\\?[a-z](?:_\{{?\w\}}?)?\s*=\s*)?", re.IGNORECASE)  # , y =
FARTHEST = 60  # characters between boxes that are one answer
LABEL = re.compile(r"(?i)[ \t*_#>]*(?:the[ \t]+)?(?:final[ \t]+)?answer(?:[ \t]+is(?=[ \t*_]*:))?[ \t*_]*(?::(.*))?")
TAG = re.compile(r"</?[A-Za-z|][^<>\s]{0,40}>")  # </s>, <|im_end|>
LOOKS = " \t\r\f\v\xa0\u3000$*_#>"
THOUGHT = re.compile(r"<think(?:ing)?>|◁think▷", re.IGNORECASE)
THOUGHT_END = re.compile(r"</think(?:ing)?>|◁/think▷", re.IGNORECASE)


def _outside_thoughts(response: str) -> str:
    """The response without what stands between <think> and </think>; a thought that does not end is left out to its end."""
    begin, *thoughts = THOUGHT.split(response)
    parts = [THOUGHT_END.split(begin)[-1]]  # a prompt may have opened a thought
    for thought in thoughts:
        _, *behind = THOUGHT_END.split(thought)
        parts.append(behind[-1] if behind else "")
    return "".join(parts)


def extract_answer(response: str) -> str | None:
    r"""What the last `\boxed{...}` holds; without a box, what follows the last `####`, or `Answer:` at the beginning of a line.

    Several boxes with only `and`, `or` or a comma between them are one answer, a list joined by `;`. Thoughts in <think>
    are not read. A box that was cut off is no answer, and no earlier one is. None if there is none of them.
    """
    text = _outside_thoughts(response)
    boxes, cut_off = _boxes(text)
    if cut_off:
        return None
    return _joined(text, boxes) if boxes else _stated(text)


def _boxes(text: str) -> tuple[list[tuple[int, int, int]], bool]:
    """(begin, begin and end of the content) of each box without a box in it; whether the last one has no end."""
    open_braces: list[tuple[int, int]] = []  # where the box begins, or -1, and where the content does
    boxes: list[tuple[int, int, int]] = []
    last_begun = -1
    for token in TOKEN.finditer(text):
        if token["brace"] or token["bare"]:
            open_braces.append((token.start(), token.end()))
            last_begun = token.start()
        elif token["box"]:
            argument = ARGUMENT.match(text, token.end())
            if argument:
                boxes.append((token.start(), argument.start(), argument.end()))
            if argument or token.end() == len(text):
                last_begun = token.start()
        elif token[0] == "{":
            open_braces.append((-1, token.end()))
        elif token[0] == "}" and open_braces:
            begin, content = open_braces.pop()
            if begin >= 0 and not (boxes and boxes[-1][0] > begin):
                boxes.append((begin, content, token.start()))
    return boxes, last_begun > (boxes[-1][0] if boxes else -1)


def _joined(text: str, boxes: list[tuple[int, int, int]]) -> str:
    """The content of the last box, with those of the boxes before it that belong to it."""
    begin, start, end = boxes[-1]
    contents = [text[start:end].strip()]
    for before, start, end in reversed(boxes[:-1]):
        between = text[end + (text[end : end + 1] == "}") : begin]
        joins = BETWEEN.fullmatch(between) if len(between) <= FARTHEST else None
        if not joins:
            break
        content = text[start:end].strip()
        if joins["joiner"] or content != contents[-1]:
            contents.append(content)
        begin = before
    return "; ".join(reversed(contents))


def _stated(text: str) -> str | None:
    """What follows the last `####` to its line's end, or `Answer:`, in its line or the next that is not empty."""
    answer, awaited = None, False
    for line in TAG.sub("", text).split("\n"):
        label, mark = LABEL.fullmatch(line.rstrip("\r")), line.rstrip("# \t\r*_").rpartition("####")
        if not label and "####" not in line and (not awaited or line.strip(LOOKS) in ("", r"\[")):
            continue
        found = ((label[1] or "") if label else mark[2]).strip(" \t\r*_\"'")
        answer, awaited = found or answer, not found and label is not None
    return answer
