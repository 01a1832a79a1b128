# SPDX-License-Identifier: MIT
"""page.py FILE: check that a page is one of ours (each element is closed, ids are unique and
what refers to them finds them, no script, nothing from elsewhere, characters that may be
shown) and print its text, a line an element."""

import html.parser
import re
import sys

VOID = {"meta", "link", "br", "hr", "img", "input"}
# In SVG, what is written <x/>.
ALLOWED = set(
    "html head meta title style body header h1 h2 h3 nav a main section p code div table thead "
    "tbody tr th td pre dl dt dd details summary figure "
    "svg g defs path circle rect use filter feflood fecomposite text polygon tspan "
    "clippath line".split()
)


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.refs, self.lines = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.look(tag, attrs)

    def look(self, tag, attrs):
        assert tag in ALLOWED, f"element {tag} at {self.getpos()}"
        for name, value in attrs:
            value = value or ""
            assert not name.startswith("on"), f"{name} of {tag}"
            assert name not in ("src", "action", "formaction", "srcset", "style"), f"{name} of {tag}"
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href"):
                assert value.startswith("#"), f"{name}={value}"
                self.refs.append(value[1:])
            if "url(" in value:
                assert value.startswith("url(#"), value
                self.refs.append(value[5:-1])

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> at {self.getpos()}: open {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if data.strip() and "style" not in self.open:
            self.lines += [x.strip() for x in data.split("\n") if x.strip()]

    def handle_comment(self, data):
        raise AssertionError(f"comment {data}")


with open(sys.argv[1], "rb") as f:
    text = f.read().decode("utf-8")
unsafe = re.search(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|[\u200e\u200f\u2028-\u202e\u2066-\u2069]", text)
assert not unsafe, f"U+{ord(unsafe[0]):04X}"
page = Page()
page.feed(text)
page.close()
assert not page.open, page.open
assert len(set(page.ids)) == len(page.ids), "ids are not unique"
assert set(page.refs) <= set(page.ids), set(page.refs) - set(page.ids)
assert "@import" not in text and "url(http" not in text
print("\n".join(page.lines))
