# SPDX-License-Identifier: MIT
"""Rows of the user's: a prompt and its answer each, from a file whose suffix tells its kind.

.jsonl, .json  an object a line, or one array of objects, in the shapes that tokenize takes:
               prompt and target or completion; instruction, output and perhaps input; messages
               or conversations of one question and one answer
.csv           the same keys in a header row (RFC 4180)
other names    prompt, TAB, target; empty lines and lines that begin with # are ignored
"""
import csv
import io
import json
import re


class Bad(Exception):
    """What is wrong with a row, and what was expected."""


class NoText(Bad):
    """The file is of another kind."""


def text_of(path):
    """The text of a file; Bad if it is not UTF-8."""
    with open(path, "rb") as f:
        raw = f.read()
    if re.search(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", raw[:512]):
        raise NoText("is no text: expected TSV, CSV or JSONL")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise Bad("line %d: expected UTF-8" % (raw.count(b"\n", 0, e.start) + 1)) from None


# ---- one row ---------------------------------------------------------------------------


def content(value):
    """A text, or an array of parts {"type": "text", "text": ...}; None if it is neither."""
    if isinstance(value, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in value):
        value = "".join(str(p.get("text", "")) for p in value)
    return value if isinstance(value, str) else None


def two_turns(messages, role, said):
    """Question and answer of a conversation."""
    names = {"human": "user", "gpt": "assistant"}
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        return None, None
    roles = [names.get(m.get(role), m.get(role)) for m in messages]
    if roles != ["user", "assistant"]:
        raise Bad("expected one message of the user and one of the assistant, found %s"
                  % (", ".join(map(str, roles)) or "none"))
    return [content(m.get(said)) for m in messages]


def of_object(row):
    """Prompt and target of an object, None where there is no such text."""
    if not isinstance(row, dict):
        raise Bad("expected an object")
    if "messages" in row:
        return two_turns(row["messages"], "role", "content")
    if "conversations" in row:
        return two_turns(row["conversations"], "from", "value")
    if "instruction" in row:
        more = content(row.get("input") or "")
        prompt = content(row["instruction"])
        return prompt + "\n" + more if prompt and more else prompt, content(row.get("output"))
    target = row.get("target", row.get("completion"))
    if isinstance(row.get("prompt"), list) and isinstance(target, list):
        return two_turns(row["prompt"] + target, "role", "content")
    if "prompt" in row and target is not None:
        return content(row["prompt"]), content(target)
    raise Bad("expected the keys prompt and target or completion, instruction and output, messages or "
              "conversations, found %s%s" % (", ".join(map(str, row)) or "none",
                                             ": fields of a CSV are separated by commas"
                                             if len(row) == 1 and ";" in str(next(iter(row))) else ""))


def checked(prompt, target):
    """Both without white space around them.  The files of the experiment have a line a row."""
    if prompt is None or target is None:
        raise Bad("expected texts as the prompt and its answer")
    prompt, target = prompt.strip(), target.strip()
    if not prompt or not target:
        raise Bad("expected a prompt and an answer, found an empty one")
    for name, text, odd in ("prompt", prompt, "\n\r\t\0"), ("answer", target, "\n\r\0"):
        if any(c in text for c in odd):
            raise Bad("the %s has a line break, a TAB or a NUL: expected one line" % name)
    if prompt.startswith("#"):
        raise Bad("the prompt begins with #, as a comment does: expected another beginning")
    return prompt, target


# ---- all rows of a file ----------------------------------------------------------------


def json_objects(text):
    """("line" or "item", number, object) of each."""
    def load(part):
        try:
            return json.loads(part)
        except ValueError as e:
            raise Bad("expected JSON: %s" % e) from None

    if text.lstrip().startswith("["):
        yield from (("item", n, row) for n, row in enumerate(load(text), 1))
        return
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield "line", n, load(line)
            except Bad as e:
                raise Bad("line %d: %s" % (n, e)) from None


def csv_objects(text):
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield "line", reader.line_num, {k: v for k, v in row.items() if k is not None}
    except csv.Error as e:
        raise Bad("line %d: expected CSV: %s" % (reader.reader.line_num, e)) from None


def tsv_rows(text):
    for n, line in enumerate(io.StringIO(text, newline=None), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        prompt, tab, target = line.partition("\t")
        prompt, target = prompt.strip(), target.strip()
        if not tab or not prompt or not target or "\0" in line:
            raise Bad("line %d: expected a prompt, a TAB and a target" % n)
        yield "line", n, prompt, target


def read(path):
    """("line" or "item", number, prompt, target) of each row; Bad names the first bad one."""
    text = text_of(path)
    suffix = path.lower().rpartition(".")[2]
    if suffix not in ("jsonl", "json", "csv"):
        yield from tsv_rows(text)
        return
    for word, n, row in csv_objects(text) if suffix == "csv" else json_objects(text):
        try:
            prompt, target = checked(*of_object(row))
        except Bad as e:
            raise Bad("%s %d: %s" % (word, n, e)) from None
        yield word, n, prompt, target
