#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the vectors of the thinking switch: conversations, and what the chat template of a hybrid
Qwen3 model makes of them.

usage: make_think.py tokenizer_config.json tests/vectors/tokenizer-small.json >tests/vectors/think.jsonl

tokenizer_config.json is that of a hybrid model, as Qwen3-0.6B, whose "chat_template" is rendered by
jinja2 as transformers does it.  Needs the packages "jinja2" (3.1.6) and "tokenizers" (0.23.2): they
are the oracle, not we.  A line: {"messages", "enable_thinking", "text", "ids"}."""
import json
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def user(content):
    return says("user", content)


def assistant(content, **more):
    return says("assistant", content, **more)


TALKS = [
    [user("Who are you?")],
    [says("system", "Be brief."), user("a"), assistant("b"), user("c")],
    # Thoughts in the text of an answer, as a client keeps it that does not know them.
    [user("a"), assistant("<think>\nwhy not\n</think>\n\nb"), user("c")],
    [user("a"), assistant("<think>\n\n</think>\n\nb"), user("c"), assistant("d"), user("e")],
    [user("a"), assistant("no beginning\n\n</think>\nb"), user("c")],
    [user("a"), assistant("x<think>y<think>\n\nz\n\n</think>m</think>\n\n\n b\n"), user("c")],
    [user("a"), assistant("<think>\nno end"), user("c")],
    # Apart.
    [user("a"), assistant("b", reasoning_content="why not"), user("c")],
    [user("a"), assistant("b</think>c", reasoning_content=""), user("c")],
    [user("a"), assistant("<think>x</think>b", reasoning_content=None), user("c")],
    # Steps after the last question keep their thoughts.
    [user("a"), assistant("b", reasoning_content="one"), says("tool", "1"), says("tool", "2")],
    [user("a"), assistant("b", reasoning_content="\n\none\n"), says("tool", "1"),
     assistant("<think>\ntwo\n</think>\n\n\nd"), says("tool", "2"), assistant("e"), says("tool", "3")],
    [user("z"), assistant("y", reasoning_content="zero"), user("a"),
     assistant("b", reasoning_content="one"), user("<tool_response>\n1\n</tool_response>")],
    [user("a"), assistant("b", reasoning_content="one"), user("<tool_response> 1 </tool_response>."),
     assistant("c", reasoning_content="two")],
    # The last message is an answer.
    [user("a"), assistant("b")],
    [user("a"), assistant("\n\nb", reasoning_content="\n")],
    [says("system", "s"), assistant("b", reasoning_content="one")],
    [user("a"), says("system", "<think>x</think>s"), user("<think>x</think>b")],
]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        source = json.load(f)["chat_template"]
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    tokenizer = Tokenizer.from_file(sys.argv[2])
    for messages in TALKS:
        for think in (True, False):
            text = template.render(messages=messages, add_generation_prompt=True, enable_thinking=think)
            line = {"messages": messages, "enable_thinking": think, "text": text,
                    "ids": tokenizer.encode(text, add_special_tokens=False).ids}
            print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
